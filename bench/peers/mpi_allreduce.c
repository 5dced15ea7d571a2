/* MPI_Allreduce in place between processes of this host, f32; one line a size.
 *
 *     mpicc -O3 -o mpi_allreduce mpi_allreduce.c
 *     mpirun -n RANKS ./mpi_allreduce SIZE[,SIZE...] [SAMPLES]
 *
 * Sizes are in bytes. Each rank rewrites its buffer before each operation, as a backward pass does, and only the operation
 * is timed: a barrier stands before the clock and one behind it, so that where ranks share a core nobody's filling or checking
 * is taken for the time of another one, and the slowest rank counts. Every element of every result is checked. The buffer is
 * made once and touched before the first operation, so that no page fault is timed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 2, MOST = 1000 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(float *x, long n, float value) {
    for (long i = 0; i < n; i++) x[i] = value;
}

static void check(const float *x, long n, float wanted) {
    long wrong = 0;
    for (long i = 0; i < n; i++) wrong += x[i] != wanted;
    if (wrong) {
        fprintf(stderr, "%ld of %ld elements are wrong\n", wrong, n);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void measure(long bytes, int samples, int rank, int world) {
    long n = bytes / 4;
    int repeats = samples ? samples : (int)((64L << 20) / bytes);
    if (!samples && repeats < 5) repeats = 5;
    if (!samples && repeats > 100) repeats = 100;
    if (repeats > MOST) repeats = MOST;
    float *x = malloc(bytes);
    double times[WARM_UP + MOST], slowest[MOST];
    for (int r = 0; r < WARM_UP + repeats; r++) {
        fill(x, n, (float)(rank + r));
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[r] = MPI_Wtime() - start;
        MPI_Barrier(MPI_COMM_WORLD);
        check(x, n, (float)(world * (world - 1) / 2 + world * r));
    }
    MPI_Allreduce(times + WARM_UP, slowest, repeats, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(slowest, repeats, sizeof(double), ascending);
    double median = (slowest[repeats / 2] + slowest[(repeats - 1) / 2]) / 2;
    if (rank == 0) printf("mpi ranks %d bytes %ld median_us %.3f\n", world, bytes, median * 1e6);
    free(x);
}

int main(int argc, char **argv) {
    int rank, world;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    int samples = argc > 2 ? atoi(argv[2]) : 0;
    for (char *next = argc > 1 ? argv[1] : "4096"; *next;) {
        measure(strtol(next, &next, 10), samples, rank, world);
        if (*next == ',') next++;
    }
    MPI_Finalize();
    return 0;
}
