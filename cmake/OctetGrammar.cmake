# octet_xgrammar: the C++ core of xgrammar, for structured output. scripts/setup.sh fetches its source
# (scripts/fetch_xgrammar.sh); OCTET_XGRAMMAR_ROOT names another copy. Without either there is no such
# target, and Octet says that structured output is missing.
set(OCTET_XGRAMMAR_ROOT "" CACHE PATH "an xgrammar source tree")
set(xgrammar_root ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar)
if(OCTET_XGRAMMAR_ROOT)
  set(xgrammar_root ${OCTET_XGRAMMAR_ROOT})
endif()
# A glob that is looked at again by each build: the source may arrive after the first one.
file(GLOB xgrammar_sources CONFIGURE_DEPENDS ${xgrammar_root}/cpp/*.cc ${xgrammar_root}/cpp/support/*.cc
     ${xgrammar_root}/cpp/converter_ext/*.cc)
if(OCTET_XGRAMMAR_ROOT AND NOT xgrammar_sources)
  message(FATAL_ERROR "OCTET_XGRAMMAR_ROOT has no cpp/*.cc: ${OCTET_XGRAMMAR_ROOT}")
endif()
if(NOT xgrammar_sources)
  message(STATUS "Structured output is left out: scripts/setup.sh fetches the engine that it needs")
  return()
endif()
# Most of the time to compile a file of it goes into headers that all share, so they go together in a
# few units; json_schema_converter.cc has names of its own and stays alone.
set(matcher_files grammar_matcher grammar_compiler earley_parser compiled_grammar tokenizer_info)
set(grammar_files fsm fsm_builder grammar grammar_builder grammar_functor)
foreach(source ${xgrammar_sources})
  get_filename_component(name ${source} NAME_WE)
  if(name IN_LIST matcher_files)
    set(group matcher)
  elseif(name IN_LIST grammar_files)
    set(group grammar)
  elseif(name STREQUAL json_schema_converter)
    set(group "")
  else()
    set(group others)
  endif()
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${group}")
endforeach()
add_library(octet_xgrammar STATIC ${xgrammar_sources})
# C++17 as its own build has it: in C++20 clang refuses a header of it.
set_target_properties(octet_xgrammar PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP CXX_STANDARD 17)
target_include_directories(octet_xgrammar SYSTEM PUBLIC ${xgrammar_root}/include
                           ${xgrammar_root}/3rdparty/picojson ${xgrammar_root}/3rdparty/dlpack/include)
# What it wants to say goes to two functions of ours (text/grammar_engine.cpp).
target_compile_definitions(octet_xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
                                                  XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# -O1 without debug information takes two thirds of the time of -O2, and the first build waits for it.
target_compile_options(octet_xgrammar PRIVATE -w -O1 -g0)
# What threads share of it is counted by atomics that TSan must see; the other sanitizers mind nothing.
if(OCTET_SANITIZE MATCHES "thread")
  target_compile_options(octet_xgrammar PRIVATE -fsanitize=thread)
endif()
