# Completion of hola for bash. It asks the program (`hola help`, `hola COMMAND --help`), so it cannot be out of date.

_hola_commands() { "$1" help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p'; }

# The options of a command, one a line, each with what it takes: DIR, cpu|cuda, or nothing.
_hola_options() {
    "$@" --help 2>/dev/null | sed -n 's/^  .\{4\}\(--[a-z0-9-]*\)\( [^ ][^ ]*\)\{0,1\}.*/\1\2/p; s/^  \(-[a-zA-Z]\), --[a-z0-9-]*\( [^ ][^ ]*\)\{0,1\}.*/\1\2/p'
}

_hola() {
    local hola=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} takes
    local command=("$hola" "${COMP_WORDS[1]}")
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] || { [ "$COMP_CWORD" -eq 2 ] && [ "$prev" = help ]; }; then
        COMPREPLY=($(compgen -W "$(_hola_commands "$hola") help version --help --version" -- "$cur"))
        return
    fi
    if [ "${COMP_WORDS[1]}" = tokenizer ]; then
        if [ "$COMP_CWORD" -eq 2 ]; then
            COMPREPLY=($(compgen -W 'train encode decode --help' -- "$cur"))
            return
        fi
        command+=("${COMP_WORDS[2]}")
    fi
    takes=$(_hola_options "${command[@]}" | sed -n "s/^$prev //p" 2>/dev/null)
    case $takes in
    *'|'*) COMPREPLY=($(compgen -W "${takes//|/ }" -- "$cur")) ;;
    '')
        case $cur in
        -*) COMPREPLY=($(compgen -W "$(_hola_options "${command[@]}" | sed -n 's/^\(--[^ ]*\).*/\1/p') --help" -- "$cur")) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")) ;;
        esac
        ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}
complete -o filenames -F _hola hola
