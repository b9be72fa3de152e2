#!/bin/sh
# The console page in a real browser: browser.sh [CHECK...], after build/cpu/octet is built.
#
# By hand, since Chromium is some 300 MB: installs Debian's chromium if there is none (needs root or
# sudo) and Playwright from PyPI into build/venv-browser. Screenshots go to build/browser.
set -eu
cd "$(dirname "$0")/.."

if ! command -v chromium >/dev/null; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get install -y --no-install-recommends chromium fonts-dejavu-core
fi
pins=tests/browser/requirements.txt
if ! cmp -s $pins build/venv-browser/installed.txt; then
  python3 -m venv --clear build/venv-browser
  build/venv-browser/bin/pip install --quiet --disable-pip-version-check -r $pins
  cp $pins build/venv-browser/installed.txt
fi
exec build/venv-browser/bin/python tests/browser/console.py build/cpu/octet . "$(command -v chromium)" \
  build/browser "$@"
