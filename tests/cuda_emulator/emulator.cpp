// The machine behind emulator.h: runs kernels' threads on one processor core. Linked with each module, which has its own.
//
// Every CUDA thread is a fiber with a stack of its own. A fiber runs until it waits (for its warp, its block, the
// grid) or steps aside at an atomic; the next one is drawn at random, so that a kernel which needs a barrier and
// has none soon reads what was not yet written. Lanes meet in a warp collective when all living lanes of the
// mask wait in the same collective with the same mask. When nobody can run, the launch fails with a list of who
// waits where. Shared memory is poisoned at the start of a block and checked behind its end when the block ends.
#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <tuple>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "emulator.h"  // behind the library's, some of whose words it defines

namespace emulator {

Running running;

constexpr size_t STACK_BYTES = 64 << 10, PAGE_BYTES = 4096, CANARY_BYTES = 256;
constexpr unsigned char POISON = 0xA5, CANARY = 0xC3;
constexpr unsigned SPINS_MAX = 1000;   // rounds of nothing but spinning that mean a deadlock
constexpr unsigned SECONDS_MAX = 120;  // of processor time: a loop that never steps aside

const char* const WAIT_NAMES[] = { "nothing", "__syncthreads", "the grid barrier", "a spin loop", "its end",
    "__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync",
    "__any_sync", "__all_sync", "__match_any_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync", "__reduce_min_sync", "__reduce_max_sync" };

struct Block;

#if defined(__x86_64__)
using Context = void*;
#else
using Context = ucontext_t;
#endif

struct Fiber : Thread {
    Context context;
    unsigned warp;
    Block* block;
    Wait wait;
    uint32_t mask;       // of the collective
    int argument, width; // of a shuffle
    uint64_t value, result;
    const char* file;
    int line;
};

struct Block {
    Dim index;
    unsigned number, alive, at_barrier, at_grid;
    bool any;  // at __syncthreads_or
    const void* part;  // the word of the barrier at which it waits with a part of the grid
    std::vector<Fiber> threads;
    std::vector<uint32_t> warp_alive;
    std::map<std::pair<int, size_t>, unsigned char*> variables;  // (place in the source, size): storage
    std::vector<std::pair<unsigned char*, size_t>> shared;       // all shared memory with its sizes
    unsigned char* dynamic;
    unsigned char* stacks;
};

struct Machine {
    const char* kernel;
    void (*call)(void*, void**);
    void* entry;
    uint64_t random;
    Context main;
    std::vector<Fiber*> runnable;
    std::vector<std::unique_ptr<Block>> resident;
    const Block* behind;  // runs when nobody else can
    unsigned spins;
    std::string error;
    sigjmp_buf escape;
};
Machine machine;

Fiber* current() { return static_cast<Fiber*>(running.thread); }

uint64_t draw(uint64_t n) {
    uint64_t& x = machine.random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(x * 0x2545F4914F6CDD1Dull) * n) >> 64);
}

// -- fibers ----------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves the callee-saved registers and the stack pointer, and goes on where `to` left off.
extern "C" void emulator_switch(Context* from, Context to);
asm(R"(
    .text
    .local emulator_switch
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
void switch_context(Context& from, Context& to) { emulator_switch(&from, to); }
void new_context(Context& context, unsigned char* stack, size_t bytes, void (*start)()) {
    void** top = reinterpret_cast<void**>(stack + bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(start);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    context = top;
}
#else
void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
void new_context(Context& context, unsigned char* stack, size_t bytes, void (*start)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
}
#endif

// Who runs next, as a place in the list of those who can: anyone, but of the block that lags behind only when the
// others can do nothing but wait for it.
size_t next_fiber() {
    const size_t n = machine.runnable.size(), first = draw(n);
    for (size_t k = 0; k < n && machine.behind != nullptr; k++) {
        const Fiber* t = machine.runnable[(first + k) % n];
        if (t->block != machine.behind && t->wait != Wait::SPIN) return (first + k) % n;
    }
    return first;
}

// The next fiber; back to the launch when there is none.
void leave() {
    Fiber* self = current();
    if (machine.runnable.empty()) {
        running.thread = nullptr;
        switch_context(self->context, machine.main);
        return;
    }
    size_t i = next_fiber();
    Fiber* next = machine.runnable[i];
    machine.runnable[i] = machine.runnable.back();
    machine.runnable.pop_back();
    next->wait = Wait::NOTHING;
    if (next == self) return;
    running.thread = next;
    switch_context(self->context, next->context);
}

[[noreturn]] void fail(const std::string& what) {
    machine.error = what;
    Fiber* self = current();
    running.thread = nullptr;
    machine.runnable.clear();
    switch_context(self->context, machine.main);
    __builtin_unreachable();
}

void fail(const char* what) { fail(std::string(what)); }

std::string name_of(const Fiber& t) {
    char text[160];
    snprintf(text, sizeof text, "kernel %s, block %u, thread %u (warp %u, lane %u)", machine.kernel,
        t.block->number, t.warp * 32 + t.lane, t.warp, t.lane);
    return text;
}

void step_aside() {
    unsigned one_in = running.launch->step_aside_one_in;
    if (one_in == 0 || draw(one_in) != 0) return;
    machine.runnable.push_back(current());
    leave();
}

void spin(const char* file, int line) {
    Fiber& t = *current();
    t.wait = Wait::SPIN, t.file = file, t.line = line;
    bool only_spinning = std::all_of(machine.runnable.begin(), machine.runnable.end(),
        [](const Fiber* other) { return other->wait == Wait::SPIN; });
    machine.spins = only_spinning ? machine.spins + 1 : 0;
    if (machine.spins > SPINS_MAX * (machine.runnable.size() + 1)) {
        running.thread = nullptr;
        machine.runnable.clear();  // the launch finds nobody who can run
        switch_context(t.context, machine.main);
    }
    machine.runnable.push_back(&t);
    leave();
}

// -- barriers --------------------------------------------------------------------------------------------------

void release(Block& block, Wait wait) {
    for (Fiber& t : block.threads)
        if (t.wait == wait) t.wait = Wait::NOTHING, machine.runnable.push_back(&t);
}

void check_block_barrier(Block& block) {
    if (block.at_barrier == 0 || block.at_barrier < block.alive) return;
    const Fiber* first = nullptr;
    for (const Fiber& t : block.threads) {
        if (t.wait != Wait::BLOCK) continue;
        if (first == nullptr) first = &t;
        if (t.line != first->line || strcmp(t.file, first->file) != 0)
            fail(name_of(t) + " waits in another __syncthreads (" + t.file + ":" + std::to_string(t.line)
                + ") than thread " + std::to_string(first->warp * 32 + first->lane) + " (" + first->file + ":"
                + std::to_string(first->line) + ")");
    }
    block.at_barrier = 0;
    release(block, Wait::BLOCK);
}

void check_grid_barrier() {
    for (auto& block : machine.resident)
        if (block->at_grid < block->alive || block->part != nullptr) return;
    // Now and then one block comes from the barrier last, when the others have done all up to the next one.
    machine.behind = draw(2) ? machine.resident[draw(machine.resident.size())].get() : nullptr;
    for (auto& block : machine.resident) {
        block->at_grid = 0;
        release(*block, Wait::GRID);
    }
}

void wait_for(Wait wait, const char* file, int line) {
    Fiber& t = *current();
    machine.spins = 0;
    t.wait = wait, t.file = file, t.line = line;
    leave();
}

void block_barrier(const char* file, int line) {
    Fiber& t = *current();
    t.wait = Wait::BLOCK, t.file = file, t.line = line;
    t.block->at_barrier++;
    check_block_barrier(*t.block);
    if (t.wait == Wait::BLOCK) return wait_for(Wait::BLOCK, file, line);
    leave();
}

bool block_barrier_or(bool vote, const char* file, int line) {
    Block& block = *current()->block;
    if (vote) block.any = true;
    block_barrier(file, line);
    const bool any = block.any;
    block_barrier(file, line);
    block.any = false;  // by all of them, before any may set it again
    block_barrier(file, line);
    return any;
}

void grid_barrier(const char* file, int line) {
    Fiber& t = *current();
    if (!running.launch->cooperative) fail(name_of(t) + ": a grid barrier in a launch that is not cooperative");
    t.wait = Wait::GRID, t.file = file, t.line = line;
    t.block->at_grid++;
    check_grid_barrier();
    if (t.wait == Wait::GRID) return wait_for(Wait::GRID, file, line);
    leave();
}

void part_barrier(const void* word, unsigned n_blocks, const char* file, int line) {
    Fiber& t = *current();
    if (!running.launch->cooperative) fail(name_of(t) + ": a grid barrier in a launch that is not cooperative");
    if (t.block->at_grid && t.block->part != word) fail(name_of(t) + " waits for another part of the grid than its block");
    t.wait = Wait::GRID, t.file = file, t.line = line;
    t.block->at_grid++;
    t.block->part = word;
    std::vector<Block*> arrived;
    for (auto& block : machine.resident)
        if (block->part == word && block->at_grid == block->alive) arrived.push_back(block.get());
    if (arrived.size() < n_blocks) return wait_for(Wait::GRID, file, line);
    machine.behind = draw(2) ? arrived[draw(arrived.size())] : nullptr;
    for (Block* block : arrived) {
        block->at_grid = 0;
        block->part = nullptr;
        release(*block, Wait::GRID);
    }
    leave();
}

// -- warp collectives ------------------------------------------------------------------------------------------

int source_lane(const Fiber& t) {
    int first = t.lane & ~(t.width - 1), last = first + t.width - 1, lane = t.lane, from = lane;
    if (t.wait == Wait::SHUFFLE) from = first + (t.argument & (t.width - 1));
    if (t.wait == Wait::SHUFFLE_UP) from = lane - t.argument < first ? lane : lane - t.argument;
    if (t.wait == Wait::SHUFFLE_DOWN) from = lane + t.argument > last ? lane : lane + t.argument;
    if (t.wait == Wait::SHUFFLE_XOR) from = (lane ^ t.argument) > last ? lane : lane ^ t.argument;
    return from;
}

template <class Combine> uint64_t reduced(const Fiber* warp, uint32_t lanes, Combine combine) {
    uint64_t all = warp[__builtin_ctz(lanes)].value;
    for (uint32_t left = lanes & (lanes - 1); left; left &= left - 1) all = combine(all, warp[__builtin_ctz(left)].value);
    return all;
}

uint64_t result_of(const Fiber& t, const Fiber* warp, uint32_t lanes) {
    uint32_t votes = 0, equal = 0;
    for (uint32_t left = lanes; left; left &= left - 1) {
        unsigned lane = __builtin_ctz(left);
        votes |= static_cast<uint32_t>(warp[lane].value != 0) << lane;
        equal |= static_cast<uint32_t>(warp[lane].value == t.value) << lane;
    }
    auto as_int = [](uint64_t x) { return static_cast<int32_t>(x); };
    switch (t.wait) {
    case Wait::BALLOT: return votes;
    case Wait::ANY: return votes != 0;
    case Wait::ALL: return votes == lanes;
    case Wait::MATCH_ANY: return equal;
    case Wait::REDUCE_ADD: return reduced(warp, lanes, [](auto a, auto b) { return a + b; });
    case Wait::REDUCE_MIN: return reduced(warp, lanes, [](auto a, auto b) { return std::min(a, b); });
    case Wait::REDUCE_MAX: return reduced(warp, lanes, [](auto a, auto b) { return std::max(a, b); });
    case Wait::REDUCE_MIN_SIGNED: return reduced(warp, lanes, [=](auto a, auto b) { return as_int(a) < as_int(b) ? a : b; });
    case Wait::REDUCE_MAX_SIGNED: return reduced(warp, lanes, [=](auto a, auto b) { return as_int(a) > as_int(b) ? a : b; });
    case Wait::REDUCE_AND: return reduced(warp, lanes, [](auto a, auto b) { return a & b; });
    case Wait::REDUCE_OR: return reduced(warp, lanes, [](auto a, auto b) { return a | b; });
    case Wait::REDUCE_XOR: return reduced(warp, lanes, [](auto a, auto b) { return a ^ b; });
    case Wait::SYNCWARP: return 0;
    default: break;  // a shuffle
    }
    int from = source_lane(t);
    // What a lane outside of the mask holds is undefined: make it conspicuous.
    return lanes >> from & 1 ? warp[from].value : 0xBADBADBADBADBADull ^ machine.random;
}

// Lets the lanes of the mask go on if all that live wait in the same collective.
bool meet(Block& block, unsigned warp_number, Wait wait, uint32_t mask) {
    Fiber* warp = &block.threads[warp_number * 32];
    uint32_t lanes = mask & block.warp_alive[warp_number];
    for (uint32_t left = lanes; left; left &= left - 1) {
        const Fiber& t = warp[__builtin_ctz(left)];
        if (t.wait != wait || t.mask != mask) return false;
    }
    for (uint32_t left = lanes; left; left &= left - 1) {
        Fiber& t = warp[__builtin_ctz(left)];
        t.result = result_of(t, warp, lanes);
    }
    for (uint32_t left = lanes; left; left &= left - 1) {
        Fiber& t = warp[__builtin_ctz(left)];
        t.wait = Wait::NOTHING;
        machine.runnable.push_back(&t);
    }
    return true;
}

uint64_t collective(Wait wait, uint32_t mask, uint64_t value, int argument, int width, const char* file, int line) {
    Fiber& t = *current();
    if (!(mask >> t.lane & 1))
        fail(name_of(t) + " is not in the mask of its own " + WAIT_NAMES[static_cast<int>(wait)] + " (" + file + ":"
            + std::to_string(line) + ")");
    machine.spins = 0;
    t.wait = wait, t.mask = mask, t.value = value, t.argument = argument, t.width = width, t.file = file, t.line = line;
    meet(*t.block, t.warp, wait, mask);
    leave();
    return t.result;
}

// -- shared memory ---------------------------------------------------------------------------------------------

unsigned char* new_shared(Block& block, size_t bytes) {
    auto* memory = static_cast<unsigned char*>(std::aligned_alloc(128, (bytes + CANARY_BYTES + 127) / 128 * 128));
    memset(memory, POISON, bytes);
    memset(memory + bytes, CANARY, CANARY_BYTES);
    block.shared.push_back({memory, bytes});
    return memory;
}

void* shared_variable(int place, size_t bytes) {
    Block& block = *current()->block;
    unsigned char*& memory = block.variables[{place, bytes}];
    if (memory == nullptr) memory = new_shared(block, bytes);
    return memory;
}

void* dynamic_shared() { return current()->block->dynamic; }

void give_back_shared(Block& block) {
    for (auto [memory, bytes] : block.shared) {
        bool whole = std::all_of(memory + bytes, memory + bytes + CANARY_BYTES, [](auto c) { return c == CANARY; });
        if (!whole && machine.error.empty())
            machine.error = std::string("kernel ") + machine.kernel + ", block " + std::to_string(block.number)
                + " wrote behind the end of " + std::to_string(bytes) + " bytes of shared memory";
        std::free(memory);
    }
    block.shared.clear();
    block.variables.clear();
}

// -- launching -------------------------------------------------------------------------------------------------

void end_thread() {
    Fiber& t = *current();
    machine.spins = 0;
    t.wait = Wait::ENDED;
    Block& block = *t.block;
    block.alive--;
    block.warp_alive[t.warp] &= ~(1u << t.lane);
    for (uint32_t left = block.warp_alive[t.warp]; left; left &= left - 1) {
        Fiber& other = block.threads[t.warp * 32 + __builtin_ctz(left)];
        if (other.wait >= Wait::SYNCWARP && other.mask >> t.lane & 1) meet(block, t.warp, other.wait, other.mask);
    }
    check_block_barrier(block);
    if (block.alive > 0 && block.at_grid > 0) check_grid_barrier();
}

void fiber() {
    machine.call(machine.entry, running.launch->arguments);
    end_thread();
    leave();
    __builtin_unreachable();
}

// Stacks outlive launches: taking them costs more than most kernels of a test. Every module has its own,
// each of which is two mappings, and a process may have some ten thousand of these.
std::map<size_t, std::vector<unsigned char*>>& stacks_at_rest() {
    static std::map<size_t, std::vector<unsigned char*>> pool;
    return pool;
}

extern "C" EMULATED_ENTRY void emulated_give_back_stacks() {
    for (auto& [n_threads, pool] : stacks_at_rest())
        for (unsigned char* stacks : pool) munmap(stacks, n_threads * STACK_BYTES);
    stacks_at_rest().clear();
}

unsigned char* take_stacks(size_t n_threads) {
    auto& pool = stacks_at_rest()[n_threads];
    if (!pool.empty()) {
        unsigned char* stacks = pool.back();
        pool.pop_back();
        return stacks;
    }
    void* memory = mmap(nullptr, n_threads * STACK_BYTES, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    auto* stacks = static_cast<unsigned char*>(memory);
    for (size_t i = 0; i < n_threads; i++) mprotect(stacks + i * STACK_BYTES, PAGE_BYTES, PROT_NONE);
    return stacks;
}

void start_block(unsigned number) {
    const Launch& launch = *running.launch;
    machine.resident.push_back(std::make_unique<Block>());
    Block& block = *machine.resident.back();
    unsigned n = launch.block.x * launch.block.y * launch.block.z;
    block.number = number;
    block.index = {number % launch.grid.x, number / launch.grid.x % launch.grid.y, number / launch.grid.x / launch.grid.y};
    block.alive = n;
    block.at_barrier = block.at_grid = 0;
    block.any = false;
    block.part = nullptr;
    block.dynamic = new_shared(block, launch.dynamic_bytes);
    block.stacks = take_stacks(n);
    block.threads.resize(n);
    block.warp_alive.assign((n + 31) / 32, ~0u);
    if (n % 32) block.warp_alive.back() = (1u << n % 32) - 1;
    for (unsigned i = 0; i < n; i++) {
        Fiber& t = block.threads[i];
        t.index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
        t.block_index = block.index, t.lane = i % 32, t.warp = i / 32, t.block = &block, t.wait = Wait::NOTHING;
        // Stacks that all began at the same offset of a page would fight for the same lines of the cache.
        new_context(t.context, block.stacks + i * STACK_BYTES, STACK_BYTES - i % 32 * 128, fiber);
        machine.runnable.push_back(&t);
    }
}

void end_block(size_t at) {
    Block& block = *machine.resident[at];
    give_back_shared(block);
    stacks_at_rest()[block.threads.size()].push_back(block.stacks);
    machine.resident.erase(machine.resident.begin() + static_cast<long>(at));
}

// Who waits where, lanes of a warp in one line.
std::string waits() {
    std::string text;
    int lines = 0;
    for (auto& block : machine.resident) {
        std::map<std::tuple<unsigned, int, std::string, int, uint32_t>, uint32_t> groups;
        for (const Fiber& t : block->threads)
            if (t.wait != Wait::ENDED)
                groups[{t.warp, static_cast<int>(t.wait), t.file ? t.file : "?", t.line, t.wait >= Wait::SYNCWARP ? t.mask : 0}]
                    |= 1u << t.lane;
        for (auto& [key, lanes] : groups) {
            auto& [warp, wait, file, line, mask] = key;
            if (++lines > 12) return text + "\n  ...";
            char row[300];
            snprintf(row, sizeof row, "\n  block %u, warp %u, lanes %08x wait for %s", block->number, warp, lanes, WAIT_NAMES[wait]);
            text += row;
            if (mask) snprintf(row, sizeof row, " with mask %08x", mask), text += row;
            text += " at " + file + ":" + std::to_string(line);
        }
    }
    return text;
}

// Runs fibers until none can; returns whether that is because blocks have ended.
void run_resident() {
    while (!machine.runnable.empty() && machine.error.empty()) {
        Fiber* first = machine.runnable[draw(machine.runnable.size())];
        machine.runnable.erase(std::find(machine.runnable.begin(), machine.runnable.end(), first));
        first->wait = Wait::NOTHING;
        running.thread = first;
        switch_context(machine.main, first->context);
    }
}

void run_blocks() {
    const Launch& launch = *running.launch;
    unsigned n_blocks = launch.grid.x * launch.grid.y * launch.grid.z, started = 0;
    std::vector<unsigned> order(n_blocks);
    for (unsigned i = 0; i < n_blocks; i++) {
        order[i] = i;
        std::swap(order[i], order[draw(i + 1)]);
    }
    size_t resident_max = launch.cooperative ? n_blocks : 1 + draw(3);
    while (machine.error.empty()) {
        while (started < n_blocks && machine.resident.size() < resident_max) start_block(order[started++]);
        if (machine.resident.empty()) return;
        run_resident();
        bool ended = false;
        for (size_t i = machine.resident.size(); i-- > 0;)
            if (machine.error.empty() && machine.resident[i]->alive == 0) end_block(i), ended = true;
        if (!ended && machine.error.empty())
            machine.error = std::string("deadlock in kernel ") + machine.kernel + ": nobody can run" + waits();
    }
}

void on_signal(int number, siginfo_t* info, void*) {
    char text[200];
    if (number == SIGVTALRM)
        snprintf(text, sizeof text, "ran for %u s: does it spin outside of intrinsics.cuh?", SECONDS_MAX);
    else
        snprintf(text, sizeof text, "signal %d at address %p: out of bounds?", number, info->si_addr);
    machine.error = (current() ? name_of(*current()) : std::string(machine.kernel)) + " " + text;
    siglongjmp(machine.escape, 1);
}

constexpr int SIGNALS[] = { SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM };

// Turns signals inside a kernel into errors, for as long as it lives.
struct SignalGuard {
    struct sigaction before[4];
    stack_t stack_before;
    std::vector<char> stack = std::vector<char>(64 << 10);
    SignalGuard() {
        stack_t own = {};
        own.ss_sp = stack.data(), own.ss_size = stack.size();
        sigaltstack(&own, &stack_before);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &before[i]);
        set_timer(SECONDS_MAX);
    }
    ~SignalGuard() {
        set_timer(0);
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
    static void set_timer(long seconds) {
        itimerval timer = {};
        timer.it_value.tv_sec = seconds;
        setitimer(ITIMER_VIRTUAL, &timer, nullptr);
    }
};

// The driver's own launch does not say how many arguments there are, nor how large.
constexpr uint32_t UNTOLD = ~0u;

std::string wrong_arguments(const size_t* sizes, uint32_t n_sizes, const Launch& launch) {
    if (launch.n_arguments == UNTOLD) return "";
    if (launch.n_arguments != n_sizes)
        return "takes " + std::to_string(n_sizes) + " arguments, not " + std::to_string(launch.n_arguments);
    for (uint32_t i = 0; i < n_sizes; i++)
        if (launch.argument_bytes[i] < sizes[i])
            return "argument " + std::to_string(i) + " has " + std::to_string(launch.argument_bytes[i]) + " bytes, not "
                + std::to_string(sizes[i]);
    return "";
}

int run_kernel(void* entry, void (*call)(void*, void**), const size_t* sizes, uint32_t n_sizes, const char* name,
    const Launch& launch) {
    running.launch = &launch;
    machine.kernel = name;
    machine.entry = entry;
    machine.call = call;
    machine.random = launch.seed * 0x9E3779B97F4A7C15ull | 1;
    machine.behind = nullptr;
    machine.spins = 0;
    running.thread = nullptr;
    machine.runnable.clear();
    machine.error = wrong_arguments(sizes, n_sizes, launch);
    if (machine.error.empty()) {
        SignalGuard guard;
        if (sigsetjmp(machine.escape, 1) == 0) run_blocks();
    } else
        machine.error = std::string("kernel ") + name + " " + machine.error;
    while (!machine.resident.empty()) end_block(machine.resident.size() - 1);
    snprintf(launch.error, launch.error_bytes, "%s", machine.error.c_str());
    return machine.error.empty() ? 0 : 1;
}

}  // namespace emulator
