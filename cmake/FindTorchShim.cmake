# Finds the torch that the shim in plugins/torch is compiled against, by path and without an
# import: torch is no build requirement, and pip's build isolation takes the environment's
# packages out of sys.path. The interpreter still is the environment's own there, and sysconfig
# still names its site-packages folder, so that is where torch is looked for.
#
# Input:  ISTHMUS_TORCH_PATH   folder that holds torch/version.py (or torch's own folder); wins
#         Python_EXECUTABLE    interpreter of the target environment; by default the one of
#                              VIRTUAL_ENV, then .venv of this tree, then what CMake finds
# Output: TorchShim_FOUND, TorchShim_REASON (why not), ISTHMUS_TORCH_ROOT (torch's folder),
#         ISTHMUS_TORCH_FULL_VERSION (2.13.0+cpu), ISTHMUS_TORCH_VERSION (2.13)
#         torch_shim_headers   imported: headers and definitions of torch and of Python
#         torch_shim_libraries imported: the above and libtorch_python, libtorch, _cpu, libc10
set(ISTHMUS_TORCH_PATH "" CACHE PATH "site-packages folder that holds torch; overrides the search")

set(TorchShim_FOUND FALSE)
set(TorchShim_REASON "")
set(ISTHMUS_TORCH_ROOT "")

if(NOT Python_EXECUTABLE)
  foreach(environment "$ENV{VIRTUAL_ENV}" "${PROJECT_SOURCE_DIR}/.venv")
    if(environment AND EXISTS "${environment}/bin/python" AND NOT Python_EXECUTABLE)
      set(Python_EXECUTABLE "${environment}/bin/python")
    endif()
  endforeach()
endif()
find_package(Python 3.9 QUIET COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)

# Folders where an installed torch may be, best first.
function(isthmus_torch_places out)
  if(ISTHMUS_TORCH_PATH)
    set(${out} "${ISTHMUS_TORCH_PATH}" PARENT_SCOPE)
    return()
  endif()
  set(program "import site, sysconfig
paths = sysconfig.get_paths()
places = [paths['purelib'], paths['platlib']] + site.getsitepackages()
places.append(site.getusersitepackages())
print(';'.join(dict.fromkeys(places)), end='')")
  set(places "")
  if(Python_Interpreter_FOUND)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${program}" OUTPUT_VARIABLE places
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(failed)
      set(places "")
    endif()
  endif()
  # A front end such as uv builds in an environment of its own: the user's is in VIRTUAL_ENV.
  if(DEFINED ENV{VIRTUAL_ENV})
    file(GLOB more "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages")
    list(APPEND places ${more})
  endif()
  list(REMOVE_DUPLICATES places)
  set(${out} "${places}" PARENT_SCOPE)
endfunction()

isthmus_torch_places(places)
foreach(place ${places})
  foreach(root "${place}/torch" "${place}")
    if(NOT ISTHMUS_TORCH_ROOT AND EXISTS "${root}/version.py" AND EXISTS "${root}/lib/libc10.so")
      set(ISTHMUS_TORCH_ROOT "${root}")
    endif()
  endforeach()
endforeach()

if(NOT ISTHMUS_TORCH_ROOT)
  string(REPLACE ";" ", " looked "${places}")
  set(TorchShim_REASON "no torch in ${looked}")
elseif(NOT Python_Development.Module_FOUND)
  set(TorchShim_REASON "${Python_EXECUTABLE} has no Python.h (Debian: apt-get install python3-dev)")
else()
  set(TorchShim_FOUND TRUE)
endif()

if(TorchShim_FOUND)
  file(STRINGS "${ISTHMUS_TORCH_ROOT}/version.py" line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+[^'\"]*" ISTHMUS_TORCH_FULL_VERSION "${line}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" ISTHMUS_TORCH_VERSION "${ISTHMUS_TORCH_FULL_VERSION}")
  # Wheels before 2.7 may use the old std::string; torch's own CMake file says which.
  set(abi 1)
  set(config "${ISTHMUS_TORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake")
  if(EXISTS "${config}")
    file(STRINGS "${config}" flags REGEX "_GLIBCXX_USE_CXX11_ABI=0")
    if(flags)
      set(abi 0)
    endif()
  endif()
  if(NOT TARGET torch_shim_headers)
    add_library(torch_shim_headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(torch_shim_headers SYSTEM INTERFACE
      "${ISTHMUS_TORCH_ROOT}/include" "${ISTHMUS_TORCH_ROOT}/include/torch/csrc/api/include"
      ${Python_INCLUDE_DIRS})
    target_compile_definitions(torch_shim_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=${abi}
      USE_DISTRIBUTED USE_C10D)
    add_library(torch_shim_libraries INTERFACE IMPORTED GLOBAL)
    target_link_libraries(torch_shim_libraries INTERFACE torch_shim_headers
      "${ISTHMUS_TORCH_ROOT}/lib/libtorch_python.so" "${ISTHMUS_TORCH_ROOT}/lib/libtorch.so"
      "${ISTHMUS_TORCH_ROOT}/lib/libtorch_cpu.so" "${ISTHMUS_TORCH_ROOT}/lib/libc10.so")
  endif()
endif()
if(NOT TorchShim_FIND_QUIETLY)
  if(TorchShim_FOUND)
    message(STATUS "torch ${ISTHMUS_TORCH_FULL_VERSION} in ${ISTHMUS_TORCH_ROOT}")
  else()
    message(STATUS "torch shim is not built: ${TorchShim_REASON}")
  endif()
endif()
if(TorchShim_FIND_REQUIRED AND NOT TorchShim_FOUND)
  message(FATAL_ERROR "the torch shim cannot be built: ${TorchShim_REASON}")
endif()
