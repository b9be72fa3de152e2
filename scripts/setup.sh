#!/bin/sh
# Installs what building Octet needs: setup.sh [--tests] [--lint] [--yes]
#
#   --tests  also what the tests need: GoogleTest, RapidCheck, clang for the fuzz targets, and a
#            Python environment in build/venv
#   --lint   also clang-tidy
#   --yes    ask no question before using sudo (so does CI=true)
#
# For Debian 12 and Ubuntu 24.04. Does nothing, at once, when all is there.
set -eu
cd "$(dirname "$0")/.."

tests=no lint=no yes=no
[ "${CI:-}" = true ] && yes=yes
for arg in "$@"; do
  case $arg in
    --tests) tests=yes ;;
    --lint) lint=yes ;;
    --yes) yes=yes ;;
    *) echo "setup.sh: unknown argument $arg; accepted: --tests --lint --yes" >&2; exit 2 ;;
  esac
done

build="g++ cmake ninja-build pkg-config libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
       libsimdjson-dev libpcre2-dev libutf8proc-dev libssl-dev zlib1g-dev python3 python3-pip"
testing="libgtest-dev libgmock-dev librapidcheck-dev python3-venv"
system=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown} ${VERSION_ID:-}" || echo unknown)
case $system in
  "debian 12")  # its libboost-dev is 1.74, and its default clang (14) lacks parts of C++20
    build="$build libboost1.81-dev" testing="$testing clang-19 libclang-rt-19-dev"
    linting="clang-tidy-19" ;;
  "ubuntu 24.04")
    build="$build libboost-dev" testing="$testing clang-18 libclang-rt-18-dev"
    linting="clang-tidy-18" ;;
  *)
    echo "setup.sh knows Debian 12 and Ubuntu 24.04, not '$system'. Nothing was installed." >&2
    echo "Octet needs the packages that are called there: $build libboost-dev (1.81 or newer)" >&2
    build="" testing="" linting="" ;;
esac

wanted=$build
[ $tests = yes ] && wanted="$wanted $testing"
[ $lint = yes ] && wanted="$wanted $linting"

# The packages of $wanted that are not installed.
missing() {
  [ -n "$wanted" ] || return 0
  # shellcheck disable=SC2086  # a list
  installed=" $(dpkg-query -W -f='${db:Status-Status}=${Package} ' $wanted 2>/dev/null || true)"
  for package in $wanted; do
    case $installed in
      *" installed=$package "*) ;;
      *) printf '%s ' "$package" ;;
    esac
  done
}

list=$(missing)
if [ -n "$list" ]; then
  command="apt-get install -y --no-install-recommends $list"
  echo "Octet needs these packages of $system:"
  echo "  $list"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Not root, and there is no sudo. As root, run: apt-get update && $command" >&2
      exit 1
    fi
    sudo="sudo"
    if [ $yes = no ]; then
      if [ ! -t 0 ]; then
        echo "No terminal to ask for leave to use sudo. Pass --yes, or run:" >&2
        echo "  sudo apt-get update && sudo $command" >&2
        exit 1
      fi
      printf 'Install them with sudo apt-get? [Y/n] '
      read -r answer
      case $answer in
        "" | y | Y | yes) ;;
        *) echo "Nothing was installed."; exit 1 ;;
      esac
    elif [ ! -t 0 ]; then
      sudo="sudo -n"  # fail rather than wait for a password that nobody can type
    fi
  fi
  $sudo apt-get update -q
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive $command
  list=$(missing)
  if [ -n "$list" ]; then
    echo "setup.sh: still missing after the installation: $list" >&2
    exit 1
  fi
fi

# Only chat templates need this; all else is built and works without it.
if ! scripts/fetch_jinja.sh; then
  echo "setup.sh: the engine of chat templates could not be fetched, so this build cannot chat." >&2
  echo "Run scripts/fetch_jinja.sh again when PyPI can be reached." >&2
fi
# And this, structured output only.
if ! scripts/fetch_xgrammar.sh; then
  echo "setup.sh: the engine of structured output could not be fetched, so this build has none." >&2
  echo "Run scripts/fetch_xgrammar.sh again when PyPI can be reached." >&2
fi

if [ $tests = yes ]; then
  pins=scripts/requirements-test.txt
  if ! cmp -s $pins build/venv/installed.txt; then
    echo "Setting up the Python environment of the tests in build/venv"
    mkdir -p build
    python3 -m venv --clear build/venv
    build/venv/bin/pip install --quiet --disable-pip-version-check -r $pins
    cp $pins build/venv/installed.txt
  fi
fi
