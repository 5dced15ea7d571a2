//! No operation allocates after its first call with a shape.

#[path = "../../../tests/harness/counting.rs"]
mod counting;
mod kernels_support;

use counting::Counting;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::*;
use kernels_support::*;
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends frees and allocates after its own counter is gone.
    let _gone = COUNT.try_with(|count| count.set(count.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// Allocations of the second call.
fn second(mut call: impl FnMut()) -> usize {
    call();
    let before = COUNT.get();
    call();
    COUNT.get() - before
}

#[test]
fn the_count_sees_an_allocation() {
    assert_eq!(second(|| drop(std::hint::black_box(vec![1.0f32; 10]))), 1);
}

fn product(cpu: &Cpu, a: Strides, b: Strides) -> usize {
    let (x, y, mut c) = (numbers(1, 100 * 700), numbers(2, 700 * 90), poison(9000));
    let shape = Product { m: 100, n: 90, k: 700, a, b, c_row: 90, write: Write::Set };
    second(|| cpu.product(&shape, &x, &y, &mut c))
}

#[test]
fn products_convolutions_and_attention_allocate_once() {
    let cpu = cpu();
    assert_eq!(product(&cpu, Strides::rows(700), Strides::transposed(700)), 0);
    assert_eq!(product(&cpu, Strides::transposed(100), Strides::rows(90)), 0);
    for (side, stride, kernel) in [
        (20, [1; 3], [1, 3, 3]),
        (20, [1, 2, 2], [1, 3, 3]),
        (20, [1; 3], [3; 3]),
        (20, [2; 3], [3; 3]),
        (4, [1; 3], [1, 3, 3]),
    ] {
        let (size, padding) = ([kernel[0], side, side], [kernel[0] / 2, 1, 1]);
        let shape = Conv3dShape { images: 6, channels: 16, size, outputs: 40, kernel, stride, padding };
        let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
        let (mut x, mut w) = (numbers(1, 96 * volume(size)), numbers(2, 640 * volume(kernel)));
        let mut y = numbers(3, 240 * volume(shape.output_size()));
        let (mut db, scratch) = (poison(40), cpu.conv_scratch(&shape).expect("the CPU has them"));
        let mut scratch = poison(scratch);
        let count = second(|| {
            cpu.conv(&shape, Operands { x: &x, w: &w, bias: None }, Activation::Relu, &mut y, &mut scratch);
            cpu.conv_weight_gradient(&shape, &x, &y, &mut w, Some(&mut db), &mut scratch);
            cpu.conv_input_gradient(&shape, &w, &y, &mut x, &mut scratch);
        });
        assert_eq!(count, 0, "stride {stride:?}, side {side}");
    }
    let shape = AttentionShape { batch: 1, time: 70, heads: 2, head: 24, mask: Mask::Causal };
    let (qkv, mut y, mut d) = (numbers(1, 70 * 144), numbers(2, 70 * 48), poison(70 * 144));
    let mut saved = poison(cpu.attention_saved(&shape));
    let count = second(|| {
        cpu.attention(&shape, &qkv, &mut y, &mut saved, &mut []);
        cpu.attention_gradient(&shape, Attended { qkv: &qkv, y: &y, saved: &saved, dy: &y }, &mut d, &mut []);
    });
    assert_eq!(count, 0, "attention");
}
