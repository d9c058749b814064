# SPDX-License-Identifier: Apache-2.0
# Runs a command of nvcc and writes its output, with the messages of ptxas, to the file LOG. If the
# command fails, or the output has a warning, CMake's error or warning shows the output.
#   cmake -DLOG=FILE -P run_nvcc.cmake -- COMMAND...
set(command "")
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(at RANGE 1 ${last})
  if(seen)
    list(APPEND command "${CMAKE_ARGV${at}}")
  elseif("${CMAKE_ARGV${at}}" STREQUAL "--")
    set(seen TRUE)
  endif()
endforeach()
execute_process(COMMAND ${command} OUTPUT_FILE ${LOG} ERROR_FILE ${LOG} RESULT_VARIABLE failed)
file(READ ${LOG} text)
if(failed)
  message(FATAL_ERROR "${text}")
elseif(text MATCHES "warning")
  message(WARNING "${text}")
endif()
