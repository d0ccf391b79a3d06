#compdef gpuipcctl
# SPDX-License-Identifier: Apache-2.0
# zsh completion for gpuipcctl(1)

# Values of one member in what the daemon lists.
_gpuipcctl_listed() {
        local member=$1
        local -a found
        shift
        found=(${(f)"$(gpuipcctl "$@" --json 2>/dev/null | grep -o "\"$member\":\"[^\"\\\\]*\"" | cut -d '"' -f 4 | sort -u)"})
        compadd -a found
}

_gpuipcctl_buffers() { _gpuipcctl_listed name list --buffers }
_gpuipcctl_sessions() { _gpuipcctl_listed session list }
_gpuipcctl_devices() { _gpuipcctl_listed uuid devices }

_gpuipcctl() {
        local -a verbs common
        local context state line
        verbs=(
@verbs@
        )
        common=(@common@)
        _arguments -C $common @lone@ '1:verb:->verb' '*::argument:->argument' && return
        if [[ $state == verb ]]; then
                _describe verb verbs
                return
        fi
        case $words[1] in
@cases@
        esac
}

_gpuipcctl "$@"
