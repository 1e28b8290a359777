#!/bin/sh
# Print a Python 3.12 with venv; say exactly what is missing otherwise.
set -u

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

for candidate in "${PYTHON:-}" python3.12 python3 python; do
    [ -n "$candidate" ] || continue
    if usable "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

# pyenv keeps versions that its shims do not show unless one is selected
for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do
    if [ -x "$candidate" ] && usable "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done

cat >&2 <<'END'
pld-ray needs Python 3.12 with its venv module, and none was found. One of these gives it:
  Debian/Ubuntu:  apt-get install python3.12 python3.12-venv
  pyenv:          pyenv install 3.12
or name one yourself:  make PYTHON=/path/to/python3.12 ...
END
exit 1
