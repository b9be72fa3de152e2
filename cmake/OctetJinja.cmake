# octet_jinja: the Jinja engine of llama.cpp, for chat templates. scripts/setup.sh fetches its source
# (scripts/fetch_jinja.sh); OCTET_JINJA_ROOT names another copy of llama.cpp. Without either there is
# no such target, and Octet says that chat templates are missing.
set(OCTET_JINJA_ROOT "" CACHE PATH "a llama.cpp source tree, for its common/jinja")
set(jinja_root ${CMAKE_SOURCE_DIR}/build/third_party/llama.cpp)
if(OCTET_JINJA_ROOT)
  set(jinja_root ${OCTET_JINJA_ROOT})
endif()
# A glob that is looked at again by each build: the source may arrive after the first one.
file(GLOB jinja_sources CONFIGURE_DEPENDS ${jinja_root}/common/jinja/*.cpp)
if(OCTET_JINJA_ROOT AND NOT jinja_sources)
  message(FATAL_ERROR "OCTET_JINJA_ROOT has no common/jinja/*.cpp: ${OCTET_JINJA_ROOT}")
endif()
if(NOT jinja_sources)
  message(STATUS "Chat templates are left out: scripts/setup.sh fetches the engine that they need")
  return()
endif()
list(FILTER jinja_sources EXCLUDE REGEX "/caps\\.cpp$")
# What the engine needs of ggml is one function, called where an assertion fails.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/jinja/ggml_abort.cpp CONTENT
  "#include <cstdlib>\nextern \"C\" void ggml_abort(const char*, int, const char*, ...) { std::abort(); }\n")
add_library(octet_jinja STATIC ${jinja_sources} ${jinja_root}/common/json.cpp
            ${jinja_root}/common/unicode.cpp ${CMAKE_BINARY_DIR}/jinja/ggml_abort.cpp)
target_include_directories(octet_jinja SYSTEM PUBLIC ${jinja_root}/common ${jinja_root}/ggml/include)
# As octet_xgrammar: the first build waits for it.
target_compile_options(octet_jinja PRIVATE -w -O1 -g0)
target_link_libraries(octet_jinja PRIVATE nlohmann_json::nlohmann_json)
