# The repository's own checks as tests: they need a Python interpreter and nothing else.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  message(STATUS "no Python 3: the layer and style checks are left out of the tests")
  return()
endif()
foreach(check check_layers tidy)
  add_test(NAME tools/${check}
           COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/${check}.py")
  set_tests_properties(tools/${check} PROPERTIES LABELS unit TIMEOUT 300)
endforeach()
add_test(NAME tools/env_docs
         COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/env_docs.py" --check)
set_tests_properties(tools/env_docs PROPERTIES LABELS unit TIMEOUT 300)
