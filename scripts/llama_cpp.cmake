# Leaves out llama.cpp's `common` library, which its programs need and its Python bindings do not: half of the build.
# The bindings' own CMakeLists.txt asks for it in the cache, and a variable wins over the cache.
set(LLAMA_BUILD_COMMON OFF)

# Leaves out the kernels for Intel's AMX where GCC would break them: before 13.2.1 it takes the configuration of tiles
# for one pointer and drops the rest of it, and the first pass over tokens is a segmentation fault
# (https://github.com/ggml-org/llama.cpp/pull/26954). A GCC without that mistake has the function asked for here;
# one before 11 knows no AMX.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 11
        AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -mamx-tile)
    check_cxx_source_compiles(
        "int main() { char tiles[64] = {}; __builtin_ia32_ldtilecfg(tiles); }" CONFIGURES_TILES)
    unset(CMAKE_REQUIRED_FLAGS)
    if(NOT CONFIGURES_TILES)
        add_compile_options(-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
endif()
