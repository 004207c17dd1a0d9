#!/usr/bin/env bash
# Functions for script/setup, script/build and script/test, which source this file in the root of the
# repository: supported LibTorch versions, and the folders of those in .deps.
#
# .deps/torch-VERSION contains one LibTorch with the libraries that it needs, as pip installs them.
# .deps/torch is a link to .deps/torch-VERSION/torch of the version in use.

# The value of a line of cmake/torch-versions: oldest, newest or default.
supported_torch() { sed -n "s/^$1 //p" cmake/torch-versions; }

# The version of the LibTorch in folder $1, such as 2.11.0; nothing if there is none.
torch_version() {
  [[ -f $1/lib/libtorch_cpu.so && -f $1/include/torch/csrc/api/include/torch/torch.h ]] || return 0
  local header=$1/include/torch/headeronly/version.h
  # Up to LibTorch 2.9.
  [[ -f $header ]] || header=$1/include/torch/csrc/api/include/torch/version.h
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$header" 2>/dev/null | paste -sd .
}

# Succeeds if version $1, such as 2.12.1 or 2.12, is between the oldest and the newest.
torch_is_supported() {
  local minor lowest highest
  minor=$(cut -d . -f 1-2 <<<"$1")
  lowest=$(printf '%s\n' "$(supported_torch oldest)" "$minor" | sort -V | head -n 1)
  highest=$(printf '%s\n' "$(supported_torch newest)" "$minor" | sort -V | tail -n 1)
  [[ $lowest == "$(supported_torch oldest)" && $highest == "$(supported_torch newest)" ]]
}

# The version that the user's argument means (default, newest, oldest, 2.12, 2.12.1). 2.12 means any 2.12.*.
requested_torch() {
  case $1 in
    default | newest | oldest) supported_torch "$1" ;;
    *) printf '%s\n' "$1" ;;
  esac
}

# The folder of the newest LibTorch in .deps of version $1, as requested_torch prints it; nothing if there is none.
installed_torch() {
  local folder best=
  for folder in .deps/torch-"$1" .deps/torch-"$1".*; do
    [[ -n $(torch_version "$folder/torch") ]] || continue
    best=$(printf '%s\n' "$best" "$folder" | sort -V | tail -n 1)
  done
  printf '%s' "${best:+$best/torch}"
}
