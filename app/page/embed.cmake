# SPDX-License-Identifier: Apache-2.0

# Functions that write the browser's code into a C++ file. If its source changes, CMake runs again.

# Reads the named files of code and joins them, without comments, indentation, most line ends and
# the blanks around operators. Texts on the page therefore must not have an operator between
# two blanks, and must not span lines.
function(qkv_read_code result)
  set(all "")
  foreach(name IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${name})
    file(READ ${name} text)
    string(APPEND all "\n${text}")
  endforeach()
  string(REGEX REPLACE "\n[ \n]+" "\n" all "${all}")
  string(REGEX REPLACE "(\n(//|/\\* SPDX)[^\n]*)+\n" "\n" all "${all}")
  string(REGEX REPLACE "([;,{]) //[^\n]*" "\\1" all "${all}")
  foreach(again RANGE 1)  # twice, since neighbours share a blank
    string(REGEX REPLACE " (=|=>|===|!==|&&|[|][|]|[?][?]|[+]=|<=|>=|[+*/?:<>%]) " "\\1" all "${all}")
  endforeach()
  string(REGEX REPLACE "([A-Za-z0-9)]) - ([A-Za-z0-9(])" "\\1-\\2" all "${all}")
  string(REGEX REPLACE "([^\n]) {\n" "\\1{\n" all "${all}")
  string(REGEX REPLACE "\n(if|for|while) [(]" "\n\\1(" all "${all}")
  string(REGEX REPLACE "(for[(][^;\n]*); ([^;\n]*); " "\\1;\\2;" all "${all}")
  string(REGEX REPLACE "[)] =>" ")=>" all "${all}")
  string(REGEX REPLACE "[(]([A-Za-z]+)[)]=>" "\\1=>" all "${all}")
  string(REGEX REPLACE "[(]([A-Za-z]+), ([A-Za-z]+)[)]=>" "(\\1,\\2)=>" all "${all}")
  string(REGEX REPLACE "(function [A-Za-z]+[(][A-Za-z]+), " "\\1," all "${all}")
  string(REGEX REPLACE "[)] (return|continue)" ")\\1" all "${all}")
  string(REGEX REPLACE "(\n|[;{})])(const|let|return) ([[{(`\"])" "\\1\\2\\3" all "${all}")
  string(REGEX REPLACE "([;,{])\n" "\\1" all "${all}")
  string(REGEX REPLACE "([{,][A-Za-z]+): " "\\1:" all "${all}")
  string(REGEX REPLACE "}\n}" "}}" all "${all}")
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

# Writes a text as adjacent C++ raw strings of at most 8000 characters, since compilers limit their
# length.
function(qkv_raw_strings result text)
  string(LENGTH "${text}" length)
  set(parts "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 part)
    string(APPEND parts "\n    R\"qkv(${part})qkv\"")
    math(EXPR at "${at} + 8000")
  endwhile()
  set(${result} "${parts}" PARENT_SCOPE)
endfunction()

# Writes page_code.cc to the build folder: page.html, page.css and the scripts, with digests.
#   qkv_page_code(SCRIPT...)
function(qkv_page_code)
  qkv_read_code(page_template page.html)
  string(STRIP "${page_template}" page_template)
  qkv_read_code(page_style page.css)
  string(REGEX REPLACE "([:,;{]) " "\\1" page_style "${page_style}")
  qkv_read_code(page_script ${ARGN})
  string(SHA256 page_style_digest "${page_style}")
  string(SHA256 page_script_digest "${page_script}")
  foreach(part IN ITEMS template style script)
    qkv_raw_strings(page_${part}_text "${page_${part}}")
  endforeach()
  configure_file(page_code.cc.in page_code.cc @ONLY)
endfunction()
