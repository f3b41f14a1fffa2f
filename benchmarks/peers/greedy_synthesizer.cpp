// Runs TACOS, the greedy synthesizer of all-gathers by Won et al. (MICRO 2024), on a given network.
//
//     git clone https://github.com/astra-sim/tacos && cd tacos
//     git checkout 1811f1fb96e6bfb08965f3b94458a52307ca9efc
//     git apply GRADWEAVE/benchmarks/peers/greedy_synthesizer.patch
//     g++ -O3 -DNDEBUG -std=c++17 -Iinclude GRADWEAVE/benchmarks/peers/greedy_synthesizer.cpp \
//         $(find src -name '*.cpp' ! -name main.cpp) -o greedy
//
// The patch lets a seed be given and has arrivals listed; what it decides is as it was. Arguments:
// bytes of the whole gradient, chunks a server, how many seeds, the first seed. Standard input:
// servers, links, and of each link source, target, GiB/s and microseconds. Standard output: the
// microseconds of the best seed's all-gather, then each of its arrivals that brought something new:
// start, end, source, target and chunk, which server chunk % servers had at first.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <tacos/collective/all_gather.h>
#include <tacos/synthesizer/synthesizer.h>

using namespace tacos;

struct Given : Topology {
    explicit Given(std::istream& in) {
        int servers, links, source, target;
        double bandwidth, latency;
        in >> servers >> links;
        setNpusCount_(servers);
        while (links-- && in >> source >> target >> bandwidth >> latency)
            connect_(source, target, bandwidth, latency, false);
    }
};

int main(int, char** given) {
    const Given topology(std::cin);
    const double bytes = std::atof(given[1]);
    const int chunks = std::atoi(given[2]), seeds = std::atoi(given[3]), first = std::atoi(given[4]);
    const AllGather collective(topology.npusCount(), chunks);
    double best = std::numeric_limits<double>::max();
    std::vector<Synthesizer::Arrival> arrivals;
    for (int seed = first; seed < first + seeds; ++seed) {
        Synthesizer synthesizer;
        std::vector<Synthesizer::Arrival> here;
        synthesizer.listTo(&here, seed);
        const double time = synthesizer.solve(topology, collective, bytes / collective.chunksCount());
        if (time < best) {
            best = time;
            arrivals = here;
        }
    }
    std::printf("%.6f\n", best);
    for (const auto& one : arrivals)
        std::printf("%.6f %.6f %d %d %d\n", one.start, one.end, one.source, one.target, one.chunk);
}
