// Stands in for gpma/device/intrinsics.cuh where kernels run on the emulated device: the same functions.

template <class T> T load_cached(const T* from)
{
    emulator::step_aside();
    return *from;
}

template <class T> T load_once(const T* from) { return *from; }

template <class T> T load_constant(const T* from) { return *from; }

template <class T> void store_cached(T* to, typename emulator::Same<T>::type value)
{
    emulator::step_aside();
    *to = value;
}

template <class T> T load_wide(const T* from)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16 && __is_trivially_copyable(T), "a structure of 16 bytes");
    emulator::step_aside();
    return *from;
}

// Each row of blocks has a barrier of its own.
inline void grid_barrier(u32* word, const char* file = __builtin_FILE(), int line = __builtin_LINE())
{
    if (gridDim.y == 1) emulator::grid_barrier(file, line);
    else emulator::part_barrier(word, gridDim.x, file, line);
}

inline void part_barrier(
    u32* word, bool, u32 n_blocks, const char* file = __builtin_FILE(), int line = __builtin_LINE())
{
    if (n_blocks == gridDim.x) emulator::grid_barrier(file, line);
    else emulator::part_barrier(word, n_blocks, file, line);
}

inline void publish(u64* word, u64 value)
{
    emulator::step_aside();
    *word = value;
}

template <class T> void store_wide(T* to, const T& value)
{
    static_assert(sizeof(T) == 16 && alignof(T) == 16 && __is_trivially_copyable(T), "a structure of 16 bytes");
    emulator::step_aside();
    *to = value;
}

template <class T> void prefetch(const T*) {}

inline void add_unseen(u64* to, u64 amount) { atomicAdd(to, amount); }
inline void add_unseen(double* to, double amount) { atomicAdd(to, amount); }

template <class T> T* held(T* pointer) { return pointer; }

typedef unsigned char* SharedAddress;

inline SharedAddress shared_address(void* shared) { return static_cast<SharedAddress>(shared); }

// What is copied arrives at once: a missing wait goes unnoticed.
inline void copy_async(void* shared, const void* from)
{
    if (reinterpret_cast<u64>(shared) % 16 || reinterpret_cast<u64>(from) % 16)
        emulator::fail("an asynchronous copy of 16 bytes between other addresses than multiples of 16");
    emulator::step_aside();
    memcpy(shared, from, 16);
}

inline void copy_async_commit() {}

template <u32 LEFT> void copy_async_wait() { emulator::step_aside(); }

inline u64 nanoseconds()
{
    timeval now;
    gettimeofday(&now, nullptr);
    return u64(now.tv_sec) * 1000000000 + u64(now.tv_usec) * 1000;
}
