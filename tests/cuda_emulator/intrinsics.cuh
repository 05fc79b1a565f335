// Stands in for gpma/device/intrinsics.cuh where kernels run on the emulated device: the same functions.

template <class T> T load_cached(const T* from)
{
    emulator::step_aside();
    return *from;
}

template <class T> T load_wide(const T* from)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16, "a structure of 16 bytes");
    emulator::step_aside();
    return *from;
}

inline void grid_barrier(u32*, u32 n_blocks, const char* file = __builtin_FILE(), int line = __builtin_LINE())
{
    if (n_blocks != gridDim.x) emulator::fail("a grid barrier of another number of blocks than there are");
    emulator::grid_barrier(file, line);
}

inline void publish(u32* word, u32 value)
{
    emulator::step_aside();
    *word = value;
}
