#!/bin/sh
# The Debian packages that the tests need beside Python: a JDK and Maven (Apache Kafka), Prometheus, g++ (the
# emulated CUDA device), Node (a client of the protocol in JavaScript), Chromium (the page of the HTTP door), curl.
# As root with apt-get at hand it installs what is missing; else it names it, and the tests that need it skip.
set -eu

missing=""
command -v java >/dev/null 2>&1 || missing="$missing default-jre-headless"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
# promtool comes with prometheus.
{ command -v prometheus && command -v promtool; } >/dev/null 2>&1 || missing="$missing prometheus"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
command -v node >/dev/null 2>&1 || missing="$missing nodejs"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing, and the tests that need them will be skipped:$missing"
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
    echo "could not be installed; the tests that need them will be skipped:$missing"
fi
rm -f "$log"
