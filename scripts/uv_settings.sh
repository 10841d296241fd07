# Sourced by what calls uv: passes pip's settings on. Expects the environment in $venv.

pip_setting() {  # `pip config get` skips some of the files that `list` reads
    $venv/bin/python -m pip config list 2>/dev/null |
        sed -n -e "s/^global\\.$1='\\(.*\\)'\$/\\1/p" -e "s/^install\\.$1='\\(.*\\)'\$/\\1/p" | sed 's/\\n/ /g' | tail -n 1
}

pass_pip_settings_to_uv() {
    # uv does not read pip's configuration. A folder of wheels may contain a smaller build of torch; a mirror or a
    # certificate may be required here. Extra indexes are not passed on: uv takes the first that has a package.
    links=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$(pip_setting find-links)}}
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip_setting index-url)}}
    certificate=${SSL_CERT_FILE:-${PIP_CERT:-$(pip_setting cert)}}
    if [ -n "$links" ]; then export UV_FIND_LINKS="$(echo $links | tr ' ' ',')"; fi  # spaces to commas
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
    if [ -n "$certificate" ]; then
        export SSL_CERT_FILE="$certificate"
    elif [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ]; then
        export UV_SYSTEM_CERTS=true  # a company's proxy certificate is there, not in uv's bundle
    fi
}
