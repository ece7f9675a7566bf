# Runs the package's recorder builder (PYTHON BUILDER --output OUTPUT). A failure does not fail the installation: the
# package then compiles the recorder on first use, or reports why it cannot.
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")
execute_process(COMMAND "${PYTHON}" "${BUILDER}" --output "${OUTPUT}"
                OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  file(REMOVE_RECURSE "${OUTPUT}")
  message(STATUS "The recorder could not be built, and will be built on first use: ${output} ${error}")
else()
  message(STATUS "Recorder built: ${output}")
endif()
