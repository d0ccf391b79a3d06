# SPDX-License-Identifier: Apache-2.0
# bash completion for gpuipcctl(1)

# What the verb's option takes; nothing when it takes no value.
_gpuipcctl_value() {
        case "$1 $2" in
@values@
        esac
}

_gpuipcctl_options() {
        case $1 in
@options@
        esac
        echo @common@
}

# What the verb's operand of that number is.
_gpuipcctl_operand() {
        case $1,$2 in
@operands@
        esac
}

# Values of one member in what the daemon lists. Only the characters that a name can have pass: words are expanded by the shell.
_gpuipcctl_listed() {
        local member=$1
        shift
        "${COMP_WORDS[0]}" "$@" --json 2>/dev/null | grep -o "\"$member\":\"[A-Za-z0-9._/-]*\"" | cut -d '"' -f 4 | sort -u
}

# Fills COMPREPLY with what fits where a value of that kind is wanted.
_gpuipcctl_complete() {
        local cur=$2 words=
        case $1 in
        PATH | FILE) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        UID) mapfile -t COMPREPLY < <(compgen -u -- "$cur"); return ;;
        BUFFER) words=$(_gpuipcctl_listed name list --buffers) ;;
        SESSION) words=$(_gpuipcctl_listed session list) ;;
        UUID) words=$(_gpuipcctl_listed uuid devices) ;;
        KIND) words="@kinds@" ;;
        VERB) words="@verbs@" ;;
        CODE) words="@codes@" ;;
        *) return ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

_gpuipcctl() {
        local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb="" n=0 i
        COMPREPLY=()
        for ((i = 1; i < COMP_CWORD; i++)); do
                case ${COMP_WORDS[i]} in
                --)
                        # A command of the user's own.
                        if ((i + 1 == COMP_CWORD)); then
                                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
                        else
                                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                        fi
                        return
                        ;;
                -*)
                        if [ -n "$(_gpuipcctl_value "$verb" "${COMP_WORDS[i]}")" ]; then
                                if [ "${COMP_WORDS[i + 1]}" = "=" ]; then ((i += 2)); else ((i++)); fi
                        fi
                        ;;
                *) if [ -z "$verb" ]; then verb=${COMP_WORDS[i]}; else ((n++)); fi ;;
                esac
        done
        # --name=value comes as three words.
        if [ "$cur" = "=" ]; then
                cur=""
        elif [ "$prev" = "=" ]; then
                prev=${COMP_WORDS[COMP_CWORD - 2]}
        fi
        if [[ $prev == -* && -n $(_gpuipcctl_value "$verb" "$prev") ]]; then
                _gpuipcctl_complete "$(_gpuipcctl_value "$verb" "$prev")" "$cur"
        elif [[ $cur == -* ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$(_gpuipcctl_options "${verb:--}")" -- "$cur")
        elif [ -z "$verb" ]; then
                _gpuipcctl_complete VERB "$cur"
        else
                _gpuipcctl_complete "$(_gpuipcctl_operand "$verb" "$n")" "$cur"
        fi
}

complete -F _gpuipcctl -o filenames gpuipcctl
