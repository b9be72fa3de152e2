# How every target of Octet is built: one static library a folder, one test binary a folder.

# -ffp-contract=off: the reference kernels promise the same bits on every compiler and ISA, and a
# compiler that fuses a multiply and an add breaks that promise silently. Never -ffast-math.
add_library(octet_flags INTERFACE)
target_include_directories(octet_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -fno-trapping-math: no value changes (only the floating-point exception flags, which nobody reads),
# and g++ vectorizes the loops over FP8 codes and exact::exp only with it.
set(cxx_flags -Wall -Wextra -Wpedantic -Werror=return-type -ffp-contract=off -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 takes designated initialisers that leave members at their defaults for a mistake, and
  # its -Wpedantic objects to vector types of intrinsics used as template arguments.
  list(APPEND cxx_flags -Wno-missing-field-initializers -Wno-ignored-attributes)
else()
  list(APPEND cxx_flags -Wno-missing-field-initializers -Wno-missing-designated-field-initializers
       -Wno-unknown-warning-option)
endif()
target_compile_options(octet_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>")
if(OCTET_SANITIZE)
  target_compile_options(octet_flags INTERFACE -fsanitize=${OCTET_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(octet_flags INTERFACE -fsanitize=${OCTET_SANITIZE})
endif()
if(OCTET_FUZZ)
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# octet_library(<folder> [SOURCES ...] [DEPS ...])
# The static library octet_<folder> of src/<folder>; all .cpp files below the folder unless SOURCES
# names them. '/' in the folder becomes '_' in the target. A folder of headers alone works as well.
function(octet_library folder)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  if(NOT arg_SOURCES)
    file(GLOB_RECURSE arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  if(NOT arg_SOURCES)
    add_library(octet_${name} INTERFACE)
    target_link_libraries(octet_${name} INTERFACE octet_flags ${arg_DEPS})
    return()
  endif()
  add_library(octet_${name} STATIC ${arg_SOURCES})
  target_link_libraries(octet_${name} PUBLIC octet_flags ${arg_DEPS})
endfunction()

# octet_test(<name> <folder of sources> [SOURCES ...] [DEPS ...] [LABELS ...] [BY_HAND])
# One GoogleTest binary of all sources in the folder and SOURCES beside it; does nothing while the
# folder has none. BY_HAND: ctest does not run it, since it needs a device.
function(octet_test name folder)
  cmake_parse_arguments(arg "BY_HAND" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_executable(${name} ${sources} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE OCTET_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             OCTET_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE octet_flags ${arg_DEPS} GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  if(arg_BY_HAND)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
