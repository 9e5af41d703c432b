# Completion of hola for fish. It asks the program (`hola help`, `hola COMMAND --help`), so it cannot be out of date.

function __hola_commands
    hola help 2>/dev/null | string match -rg '^  ([a-z]+  .*)' | string replace -r '  +' \t
    printf '%s\n' 'help'\t'print the commands' 'version'\t'print the version'
end

function __hola_words # the command, and that of tokenizer
    set -l words (commandline -opc)
    if test (count $words) -gt 2; and test $words[2] = tokenizer
        printf '%s\n' $words[2..3]
    else if test (count $words) -gt 1
        echo $words[2]
    end
end

function __hola_options
    hola (__hola_words) --help 2>/dev/null | string match -rg '^  .{4}(--[a-z0-9-]+)'
    echo --help
end

function __hola_values # of the option before the cursor, where it takes one of some words
    set -l words (commandline -opc)
    hola (__hola_words) --help 2>/dev/null | string match -rg -- '^  .*'(string escape --style=regex -- $words[-1])' (\S+\|\S+)' | string split '|'
end

complete -c hola -n '__fish_is_first_arg' -f -a '(__hola_commands)'
complete -c hola -n '__fish_seen_subcommand_from tokenizer; and test (count (commandline -opc)) -eq 2' -f -a 'train encode decode'
complete -c hola -n 'not __fish_is_first_arg; and string match -q -- "-*" (commandline -ct)' -f -a '(__hola_options)'
complete -c hola -n 'not __fish_is_first_arg; and count (__hola_values) >/dev/null' -f -a '(__hola_values)'
