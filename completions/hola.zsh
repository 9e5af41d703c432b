#compdef hola
# Completion of hola for zsh. It asks the program (`hola help`, `hola COMMAND --help`), so it cannot be out of date.

_hola() {
    local hola=$words[1] takes
    local -a names command
    if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
        names=(${(f)"$($hola help 2>/dev/null | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1:\2/p')"} 'help:print the commands' 'version:print the version')
        _describe command names
        return
    fi
    command=($hola $words[2])
    if [[ $words[2] == tokenizer ]]; then
        if (( CURRENT == 3 )); then
            names=(train encode decode)
            _describe command names
            return
        fi
        command+=($words[3])
    fi
    takes=$($command --help 2>/dev/null | sed -n "s/^  .*$words[CURRENT-1] \([^ ][^ ]*\).*/\1/p" | head -n 1)
    if [[ $words[CURRENT-1] == -* && $takes == *'|'* ]]; then
        names=(${(s:|:)takes})
        _describe value names
    elif [[ $words[CURRENT] == -* ]]; then
        names=(${(f)"$($command --help 2>/dev/null | sed -n 's/^  .\{4\}\(--[a-z0-9-]*\).*/\1/p')"} --help)
        _describe option names
    else
        _files
    fi
}
_hola "$@"
