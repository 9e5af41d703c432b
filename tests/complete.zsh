#!/usr/bin/env zsh
# complete.zsh DIR LINE...: what a tab makes of each LINE in an interactive zsh on a terminal of its own; DIR holds _hola
# and the program.
zmodload zsh/zpty
for line in "$@[2,-1]"; do
    zpty z zsh -f -i
    zpty -w z "PS1=; fpath=($1 \$fpath); path=($1 \$path); autoload -Uz compinit; compinit -u -D; bindkey -e; echo be-ready"
    zpty -r -m z out '*be-ready*be-ready*' # the command, then what it prints
    zpty -n -w z "$line"$'\t\x01echo "[\x05]"\n' # back to the front of the line, to print it
    zpty -r -m z out $'*\n[[]*[]]*'
    zpty -d z
    out=${out##*$'\n['}
    print -r -- "${out%%]*}"
done
