# The generated sources (operator dispatch, autograd, Python bindings) are the largest and gain little from
# optimization. A source's own options come after PyTorch's -O2. Deferred, since the targets come after project().
function(overlay_generated_sources)
  foreach(target torch_cpu torch_python)
    if(TARGET ${target})
      get_target_property(sources ${target} SOURCES)
      list(FILTER sources INCLUDE REGEX "/build/aten/src/ATen/.*\\.cpp$|/generated/.*\\.cpp$")
      set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "@OPTION@")
    endif()
  endforeach()
endfunction()

if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.19)
  cmake_language(DEFER CALL overlay_generated_sources)
endif()
