# Runs the package's own recorder builder (PYTHON BUILDER --output OUTPUT). Its failure never fails an install: the
# package compiles the recorder on first use instead, or says then why it cannot.
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")
execute_process(COMMAND "${PYTHON}" "${BUILDER}" --output "${OUTPUT}"
                OUTPUT_VARIABLE said ERROR_VARIABLE complained RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  file(REMOVE_RECURSE "${OUTPUT}")
  message(STATUS "The recorder was not built now and will be on first use: ${said} ${complained}")
else()
  message(STATUS "Recorder built: ${said}")
endif()
