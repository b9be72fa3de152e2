# cmake -D "FILES=a;b" -D OUT=x.cpp -P EmbedFiles.cmake: writes the files of the console page into a
# source file, each with its path, type and an ETag of its bytes (src/server/web/assets.h).
set(types html "text/html" css "text/css" js "text/javascript" svg "image/svg+xml")
set(rows "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  get_filename_component(ending ${file} LAST_EXT)
  string(SUBSTRING ${ending} 1 -1 ending)
  list(FIND types ${ending} at)
  math(EXPR at "${at} + 1")
  list(GET types ${at} type)
  set(path "/console/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  file(READ ${file} text)
  string(FIND "${text}" ")octet\"" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} holds what ends a raw string of the generated source")
  endif()
  string(APPEND rows "    {\"${path}\", \"${type}; charset=utf-8\", \"\\\"${hash}\\\"\", R\"octet(${text})octet\"},\n")
endforeach()
file(WRITE ${OUT} "#include \"server/web/assets.h\"

namespace octet::server {

std::span<const Asset> assets() {
  static constexpr Asset files[] = {
${rows}  };
  return files;
}

}  // namespace octet::server
")
