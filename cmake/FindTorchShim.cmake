# Finds the torch that the shim in plugins/torch is compiled against, by path and without an
# import: torch is no build requirement, and pip's build isolation takes the environment's
# packages out of sys.path. The interpreter still is the environment's own there, and sysconfig
# still names its site-packages folder, so that is where torch is looked for.
#
# Input:  ISTHMUS_TORCH_PATH   list of folders that hold torch/version.py (or torch's own folders);
#                              a shim is built for each, and nothing is searched for
#         Python_EXECUTABLE    interpreter of the target environment; by default the one of
#                              VIRTUAL_ENV, then .venv of this tree, then what CMake finds
# Output: TorchShim_FOUND, TorchShim_REASON (why not)
#         ISTHMUS_TORCH_VERSIONS       minor versions found, as in "2.12;2.13"; for each of them
#         torch_shim_libraries_2_13    imported: headers and definitions of torch and of Python,
#                                      and libtorch_python, libtorch, libtorch_cpu, libc10
set(ISTHMUS_TORCH_PATH "" CACHE STRING "folders that hold torch, one a version; no search then")

set(TorchShim_FOUND FALSE)
set(TorchShim_REASON "")
set(ISTHMUS_TORCH_VERSIONS "")

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

# torch's own folder at a place that holds it; empty where there is none.
function(isthmus_torch_root place out)
  set(${out} "" PARENT_SCOPE)
  foreach(root "${place}/torch" "${place}")
    if(EXISTS "${root}/version.py" AND EXISTS "${root}/lib/libc10.so")
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Makes the target of one torch and adds its version to ISTHMUS_TORCH_VERSIONS; or says why not.
function(isthmus_torch_target root)
  file(STRINGS "${root}/version.py" line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+[^'\"]*" full "${line}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" version "${full}")
  if(version VERSION_LESS 2.8)
    set(TorchShim_REASON "torch ${full} in ${root} is older than 2.8" PARENT_SCOPE)
    return()
  elseif(version IN_LIST ISTHMUS_TORCH_VERSIONS)
    set(TorchShim_REASON "one shim fits every torch ${version}, and ISTHMUS_TORCH_PATH names two"
        PARENT_SCOPE)
    return()
  endif()
  string(REPLACE "." "_" suffix "${version}")
  set(target "torch_shim_libraries_${suffix}")
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE
    "${root}/include" "${root}/include/torch/csrc/api/include" ${Python_INCLUDE_DIRS})
  target_compile_definitions(${target} INTERFACE USE_DISTRIBUTED USE_C10D)
  if(version VERSION_LESS 2.9)
    # pybind11 lets modules see each other's types only if compilers of one ABI made them, or said
    # so: this one takes the number of torch's.
    file(STRINGS "${root}/lib/libtorch_python.so" abi LIMIT_COUNT 1
         REGEX "__pybind11_internals_v[0-9]+_gcc_libstdcpp_cxxabi[0-9]+__")
    string(REGEX MATCH "_cxxabi[0-9]+" abi "${abi}")
    target_compile_definitions(${target} INTERFACE "PYBIND11_BUILD_ABI=\"${abi}\"")
  endif()
  target_link_libraries(${target} INTERFACE "${root}/lib/libtorch_python.so"
    "${root}/lib/libtorch.so" "${root}/lib/libtorch_cpu.so" "${root}/lib/libc10.so")
  if(NOT TorchShim_FIND_QUIETLY)
    message(STATUS "torch ${full} in ${root}")
  endif()
  set(ISTHMUS_TORCH_VERSIONS ${ISTHMUS_TORCH_VERSIONS} "${version}" PARENT_SCOPE)
endfunction()

set(roots "")
if(ISTHMUS_TORCH_PATH)
  foreach(place ${ISTHMUS_TORCH_PATH})
    isthmus_torch_root("${place}" root)
    if(root)
      list(APPEND roots "${root}")
    elseif(NOT TorchShim_REASON)
      set(TorchShim_REASON "no torch in ${place}, which ISTHMUS_TORCH_PATH names")
    endif()
  endforeach()
else()
  isthmus_torch_places(places)
  foreach(place ${places})
    isthmus_torch_root("${place}" root)
    if(root AND NOT roots)
      set(roots "${root}")
    endif()
  endforeach()
  if(NOT roots)
    string(REPLACE ";" ", " looked "${places}")
    set(TorchShim_REASON "no torch in ${looked}")
  endif()
endif()
if(NOT TorchShim_REASON AND NOT Python_Development.Module_FOUND)
  set(TorchShim_REASON "${Python_EXECUTABLE} has no Python.h (Debian: apt-get install python3-dev)")
endif()

if(NOT TorchShim_REASON)
  foreach(root ${roots})
    isthmus_torch_target("${root}")
  endforeach()
endif()
if(NOT TorchShim_REASON)
  set(TorchShim_FOUND TRUE)
elseif(TorchShim_FIND_REQUIRED OR ISTHMUS_TORCH_PATH)
  message(FATAL_ERROR "the torch shim cannot be built: ${TorchShim_REASON}")
elseif(NOT TorchShim_FIND_QUIETLY)
  message(STATUS "torch shim is not built: ${TorchShim_REASON}")
endif()
