# SPDX-License-Identifier: Apache-2.0
# bash completion for gpuipcd(8)

_gpuipcd() {
        local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=
        COMPREPLY=()
        # --name=value comes as three words.
        if [ "$cur" = "=" ]; then
                cur=""
        elif [ "$prev" = "=" ]; then
                prev=${COMP_WORDS[COMP_CWORD - 2]}
        fi
        case $prev in
@values@
        *) words="@options@" ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _gpuipcd -o filenames gpuipcd
