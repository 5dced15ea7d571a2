/* What the threads of a launch touch, for those who ask (`StandIn::watched`): the compiler puts a call before each access
 * (-fsanitize=thread), and this file has the bodies in place of its library's.
 *
 * An error is a place that two threads touch, one of them writing, without a barrier of their block between, or that threads of two
 * blocks do: also where they write the same or where every order gives the same. Of each access of whole warps it counts what
 * a GPU takes for it, and the least that as many bytes could take: bytes of memory, of which no run of neighbours takes less than a
 * sector of 32, wherever it begins; and turns of the 32 banks of shared memory (a turn is 128 bytes; accesses of 8 bytes go by
 * halves of a warp, those of 16 by quarters).
 *
 * It does not know caches, or that a compiler may join neighbouring accesses of a thread; what should be one access has to be one in the
 * source. Kernels are compiled without optimising here, so that each access is there.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <link.h>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" char __start_shim_shared[] __attribute__((weak));
extern "C" char __stop_shim_shared[] __attribute__((weak));

namespace {

typedef uintptr_t Address;

const unsigned WARP = 32, MOST_THREADS = 1024, CALLERS = 3;

struct Range {
    Address start, end;
    bool has(Address at) const { return start <= at && at < end; }
};

/* The thread that runs, its stack, and the block. No thread while the scheduler runs. */
unsigned thread;
Range own_stack;
unsigned block;
/* Barriers and blocks so far. */
unsigned epoch = 1, blocks;
bool watching;
const char* error;
char words[256];

/* Where this library and its variables lie. */
Range image;

int find_image(dl_phdr_info* info, size_t, void*) {
    Address here = (Address)&find_image;
    Range all = {~(Address)0, 0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        Address start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        all.start = std::min(all.start, start);
        all.end = std::max(all.end, start + info->dlpi_phdr[i].p_memsz);
    }
    if (all.has(here)) image = all;
    return all.has(here);
}

uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Who called whom, of each thread. */
struct Call {
    uint64_t hash;
    Address from;
};
std::vector<Call> calls[MOST_THREADS];

/* An access of the source, by the calls that lead to it. */
struct Site {
    bool shared;
    unsigned bytes;
    Address from[1 + CALLERS];
    uint64_t requests, took, least;
    /* How often each lane of the warp that runs has been there since it waited last. */
    struct {
        unsigned times, thread, waits, block;
    } lanes[WARP];
};
std::unordered_map<uint64_t, Site> sites;

/* How often each thread of the block has waited. */
unsigned waits[MOST_THREADS];

/* What the lanes of the warp that runs have touched at one site, after as many waits and as many touches there since. */
struct Request {
    uint64_t key;
    Site* site;
    unsigned lanes;
    Address at[WARP];
};
std::vector<Request> requests;
/* Where those are, by their keys: one behind the number of each, in a table whose length is a power of two. */
std::vector<unsigned> where(1 << 12);

Request& request_of(uint64_t key, Site* site) {
    if (requests.size() * 2 >= where.size()) {
        where.assign(where.size() * 2, 0);
        for (unsigned i = 0; i < requests.size(); i++) {
            size_t at = requests[i].key & (where.size() - 1);
            while (where[at]) at = (at + 1) & (where.size() - 1);
            where[at] = i + 1;
        }
    }
    size_t at = key & (where.size() - 1);
    for (; where[at]; at = (at + 1) & (where.size() - 1)) {
        if (requests[where[at] - 1].key == key) return requests[where[at] - 1];
    }
    requests.emplace_back();
    requests.back().key = key;
    requests.back().site = site;
    where[at] = (unsigned)requests.size();
    return requests.back();
}

/* The different numbers among `count`. */
unsigned different(Address* all, unsigned count) {
    std::sort(all, all + count);
    return (unsigned)(std::unique(all, all + count) - all);
}

void close_requests() {
    for (Request& request : requests) {
        Site& site = *request.site;
        if (request.lanes < WARP) continue;
        Address pieces[WARP * 4];
        unsigned word = std::min(site.bytes, 4u), each = site.bytes / word;
        site.requests++;
        if (!site.shared) {
            unsigned count = 0;
            for (Address at : request.at) {
                for (unsigned i = 0; i < each; i++) pieces[count++] = at + i * word;
            }
            count = different(pieces, count);
            site.least += count * word;
            for (unsigned first = 0, i = 1; i <= count; i++) {
                if (i < count && pieces[i] == pieces[i - 1] + word) continue;
                site.took += std::max((i - first) * word, 32u);
                first = i;
            }
            continue;
        }
        unsigned lanes = WARP / each;
        for (unsigned first = 0; first < WARP; first += lanes) {
            unsigned count = 0, banks[32] = {};
            for (unsigned lane = first; lane < first + lanes; lane++) {
                for (unsigned i = 0; i < each; i++) pieces[count++] = request.at[lane] / 4 + i;
            }
            count = different(pieces, count);
            for (unsigned i = 0; i < count; i++) banks[pieces[i] % 32]++;
            site.took += *std::max_element(banks, banks + 32);
            site.least += (count + 31) / 32;
        }
    }
    if (!requests.empty()) std::fill(where.begin(), where.end(), 0);
    requests.clear();
}

const unsigned NOBODY = ~0u;

/* Who touched two bytes last in this launch. */
struct Touched {
    unsigned wrote, wrote_block = NOBODY, write_epoch;
    unsigned read, read_block = NOBODY, read_epoch;
    /* By more threads since the last barrier, by more blocks. */
    bool read_by_more, read_by_blocks;
};
const unsigned PAGE = 4096;
std::unordered_map<Address, std::vector<Touched>> pages;
const Address NOWHERE = ~(Address)0;
Address page_at_hand = NOWHERE;
Touched* at_hand;

Touched& touched(Address at) {
    if (at / PAGE != page_at_hand) {
        page_at_hand = at / PAGE;
        std::vector<Touched>& page = pages[page_at_hand];
        page.resize(PAGE / 2);
        at_hand = page.data();
    }
    return at_hand[at % PAGE / 2];
}

void say(const char* what, unsigned other, unsigned other_block, const Site& site) {
    if (error) return;
    int used = snprintf(words, sizeof words, "%s what thread %u of block %u %s:", what, other, other_block,
                        other_block == block ? "touches with no barrier between" : "touches too");
    for (Address from : site.from) {
        if (from && used < 230) used += snprintf(words + used, sizeof words - used, " +%lx", (unsigned long)(from - image.start));
    }
    error = words;
}

/* In shared memory what another block left is no concern of this one: it is spoiled before a block begins. */
void compare(Address at, bool writes, const Site& site) {
    Touched& t = touched(at);
    if (site.shared && t.wrote_block != block && t.read_block != block) t = Touched();
    bool was_written = t.wrote_block != NOBODY, was_read = t.read_block != NOBODY;
    bool write_is_near = t.wrote_block != block ? !site.shared : t.write_epoch == epoch && t.wrote != thread;
    if (was_written && write_is_near) say(writes ? "writes" : "reads", t.wrote, t.wrote_block, site);
    bool read_is_near = t.read_block != block || t.read_by_blocks
        ? !site.shared
        : t.read_epoch == epoch && (t.read != thread || t.read_by_more);
    if (writes && was_read && read_is_near) say("writes", t.read, t.read_block, site);
    if (writes) {
        t.wrote = thread, t.wrote_block = block, t.write_epoch = epoch;
    } else {
        bool again = was_read && t.read_block == block && t.read_epoch == epoch;
        t.read_by_more = again && (t.read_by_more || t.read != thread);
        t.read_by_blocks |= was_read && t.read_block != block && !site.shared;
        t.read = thread, t.read_block = block, t.read_epoch = epoch;
    }
}

void touch(const void* place, unsigned bytes, bool writes, void* from) {
    if (!watching || !own_stack.has((Address)__builtin_frame_address(0))) return;
    Address at = (Address)place;
    Range room = {(Address)__start_shim_shared, (Address)__stop_shim_shared};
    bool shared = room.start && room.has(at);
    if (own_stack.has(at) || (!shared && image.has(at))) return;
    std::vector<Call>& stack = calls[thread];
    uint64_t key = mixed((stack.empty() ? 0 : stack.back().hash) ^ mixed((Address)from));
    auto [found, is_new] = sites.try_emplace(key);
    Site& site = found->second;
    if (is_new) {
        site = {shared, bytes, {(Address)from}, 0, 0, 0, {}};
        for (unsigned i = 0; i < CALLERS && i < stack.size(); i++) site.from[1 + i] = stack[stack.size() - 1 - i].from;
    }
    auto& there = site.lanes[thread % WARP];
    if (there.thread != thread || there.waits != waits[thread] || there.block != blocks) {
        there = {0, thread, waits[thread], blocks};
    }
    Request& request = request_of(mixed(key + mixed((uint64_t)waits[thread] << 32 | there.times++)), &site);
    if (request.lanes < WARP) request.at[request.lanes++] = at;
    for (unsigned i = 0; i < bytes; i += 2) compare(at + i, writes, site);
}

}  // namespace

namespace shim {

void watch_launch() {
    if (!image.end) dl_iterate_phdr(find_image, 0);
    watching = true;
    error = 0;
    for (auto& stack : calls) stack.clear();
}

void watch_block(unsigned index) {
    block = index;
    epoch++;
    blocks++;
    std::fill(waits, waits + MOST_THREADS, 0);
}

void watch_barrier() { epoch++; }

void watch_thread(unsigned index, const char* stack, const char* end) {
    thread = index;
    waits[index]++;
    own_stack = {(Address)stack, (Address)end};
}

const char* watch_error() { return error; }

void watch_warp() { close_requests(); }

void watch_end() {
    close_requests();
    watching = false;
    pages.clear();
    page_at_hand = NOWHERE;
}

void watch_touch(const void* at, unsigned bytes, bool writes) { touch(at, bytes, writes, __builtin_return_address(0)); }

}  // namespace shim

/* A line for each site that whole warps were at since the last call: shared or not, bytes, requests, what they took, the least, and
 * where in the library it is and who called it. */
extern "C" const char* shim_accesses() {
    static std::string text;
    text.clear();
    for (auto& entry : sites) {
        Site& site = entry.second;
        if (site.requests == 0) continue;
        char line[256];
        int used = snprintf(line, sizeof line, "%d %u %lu %lu %lu", site.shared, site.bytes, (unsigned long)site.requests,
                            (unsigned long)site.took, (unsigned long)site.least);
        for (Address from : site.from) {
            if (from) used += snprintf(line + used, sizeof line - used, " +%lx", (unsigned long)(from - image.start));
        }
        (text += line) += '\n';
        site.requests = site.took = site.least = 0;
    }
    return text.c_str();
}

#define HOOK(BYTES)                                                                                              \
    void __tsan_read##BYTES(void* at) { touch(at, BYTES, false, __builtin_return_address(0)); }                  \
    void __tsan_write##BYTES(void* at) { touch(at, BYTES, true, __builtin_return_address(0)); }                  \
    void __tsan_unaligned_read##BYTES(void* at) { touch(at, BYTES, false, __builtin_return_address(0)); }        \
    void __tsan_unaligned_write##BYTES(void* at) { touch(at, BYTES, true, __builtin_return_address(0)); }        \
    void __tsan_volatile_read##BYTES(void* at) { touch(at, BYTES, false, __builtin_return_address(0)); }         \
    void __tsan_volatile_write##BYTES(void* at) { touch(at, BYTES, true, __builtin_return_address(0)); }

extern "C" {
HOOK(1)
HOOK(2)
HOOK(4)
HOOK(8)
HOOK(16)
void __tsan_read_range(char* at, unsigned long bytes) {
    for (unsigned long i = 0; i < bytes; i += 16) touch(at + i, std::min(bytes - i, 16ul), false, __builtin_return_address(0));
}
void __tsan_write_range(char* at, unsigned long bytes) {
    for (unsigned long i = 0; i < bytes; i += 16) touch(at + i, std::min(bytes - i, 16ul), true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void* from) {
    if (!watching || !own_stack.has((Address)__builtin_frame_address(0))) return;
    std::vector<Call>& stack = calls[thread];
    stack.push_back({mixed((stack.empty() ? 0 : stack.back().hash) + (Address)from), (Address)from});
}
void __tsan_func_exit() {
    if (!watching || !own_stack.has((Address)__builtin_frame_address(0))) return;
    if (!calls[thread].empty()) calls[thread].pop_back();
}
}
