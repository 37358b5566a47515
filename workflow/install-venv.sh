#!/bin/sh
# Debian keeps Python's venv in a package of its own: install it where we may, else say how.
set -eu
python=$1
package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package"
else
  echo "$python has no venv module. Install it with: sudo apt-get install $package" >&2
  exit 1
fi
