# Leaves out llama.cpp's `common` library, which its programs need and its Python bindings do not: half of the build.
# The bindings' own CMakeLists.txt asks for it in the cache, and a variable wins over the cache.
set(LLAMA_BUILD_COMMON OFF)
