#!/bin/sh
# The Debian packages that the tests need beside Python: a JDK and Maven (Apache Kafka), Prometheus, g++ (the
# emulated CUDA device), Node (a client of the protocol in JavaScript), Chromium (the page of the HTTP door), curl,
# systemd (what it says of the unit). As root with apt-get at hand it installs what is missing; else it names it, and
# the tests that need it skip. In CI (CI=true) nothing may be missing in the end.
set -eu

without() {
    if [ "${CI:-}" = true ]; then
        echo "$1; in CI that is a failure:$missing" >&2
        exit 1
    fi
    echo "$1, and the tests that need them will be skipped:$missing"
}

missing=""
command -v java >/dev/null 2>&1 || missing="$missing default-jre-headless"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
# promtool comes with prometheus.
{ command -v prometheus && command -v promtool; } >/dev/null 2>&1 || missing="$missing prometheus"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
command -v node >/dev/null 2>&1 || missing="$missing nodejs"
{ command -v chromium || command -v chromium-browser; } >/dev/null 2>&1 || missing="$missing chromium"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    without "missing"
    echo "to install them: sudo apt-get install --no-install-recommends$missing"
    exit 0
fi

# Packages must not start their services here: say so to invoke-rc.d while they are installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi

echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086  # one word a package
if ! { apt-get update && apt-get install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log"
    rm -f "$log"
    without "could not be installed"
fi
rm -f "$log"
