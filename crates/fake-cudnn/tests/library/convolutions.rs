//! The three passes against plain f64 convolutions, what tells algorithms apart, and what is done behind a sum.

use crate::caller::{Caller, OK, Pass, Tensor};
use cudarc::cudnn::sys::{
    cudnnActivationMode_t as Mode, cudnnDataType_t as Type, cudnnDeterminism_t as Determinism,
    cudnnMathType_t as Math, cudnnNanPropagation_t as Nan, cudnnStatus_t as Status,
};

pub fn flat(numbers: Type) -> Caller {
    Caller::new(numbers, &[2, 3, 9, 8], &[9, 3, 3, 2], [&[1, 0], &[2, 1], &[1, 2]])
}

pub fn deep(numbers: Type) -> Caller {
    Caller::new(numbers, &[3, 2, 4, 7, 5], &[5, 2, 3, 2, 3], [&[1, 0, 2], &[1, 2, 3], &[1; 3]])
}

/// The product of a place of x and one of w that goes into one of y, all of them.
fn each(it: &Caller, mut work: impl FnMut([usize; 3])) {
    let sizes = |of: &Tensor| of.sizes.iter().map(|n| *n as usize).collect::<Vec<_>>();
    let [x, w, y] = [0, 1, 2].map(|which| sizes(&it.tensors[which]));
    let coordinate = |sizes: &[usize], axis: usize, at: usize| {
        at / sizes[axis + 1..].iter().product::<usize>() % sizes[axis]
    };
    for out in 0..y.iter().product() {
        let (image, output) = (coordinate(&y, 0, out), coordinate(&y, 1, out));
        for inner in 0..w[1..].iter().product() {
            let tap = output * w[1..].iter().product::<usize>() + inner;
            let mut at = image * x[1] + coordinate(&w, 1, tap);
            let mut is_inside = true;
            for (axis, size) in x.iter().enumerate().skip(2) {
                let [padding, stride, dilation] = [0, 1, 2].map(|list| it.steps[list][axis - 2] as usize);
                let place = coordinate(&y, axis, out) * stride + coordinate(&w, axis, tap) * dilation;
                is_inside &= (padding..padding + size).contains(&place);
                at = at * size + place.wrapping_sub(padding).min(*size);
            }
            if is_inside {
                work([at, tap, out]);
            }
        }
    }
}

/// Which of x, w and y a pass writes.
fn target(pass: Pass) -> usize {
    match pass {
        Pass::Inputs => 0,
        Pass::Weights => 1,
        Pass::Forward => 2,
    }
}

/// What a pass has to give, with the factors of the caller.
fn wanted(it: &Caller, pass: Pass) -> Vec<f64> {
    let target =
        [(Pass::Inputs, 0), (Pass::Weights, 1), (Pass::Forward, 2)].into_iter().find(|p| p.0 == pass);
    let target = target.expect("one of the three").1;
    let (others, [alpha, beta]) = ([(target + 1) % 3, (target + 2) % 3], it.factors.map(f64::from));
    let get = |which: usize, place| f64::from(it.tensors[which].get(place));
    let mut all: Vec<f64> = (0..it.tensors[target].len()).map(|place| beta * get(target, place)).collect();
    each(it, |at| {
        let [a, b] = others.map(|which| get(which, at[which]));
        all[at[target]] += alpha * a * b;
    });
    all
}

/// The numbers of a pass by an algorithm.
fn found(it: &mut Caller, pass: Pass, number: u32, workspace: usize) -> Vec<f32> {
    let before = it.tensors.clone();
    let mut room = vec![f32::NAN; workspace / 4];
    assert_eq!(it.run(Some(pass), number, &mut room), OK);
    assert!(room.iter().all(|number| !number.is_nan()), "the workspace was not used");
    let after = std::mem::replace(&mut it.tensors, before);
    let which = target(pass);
    (0..after[which].len()).map(|place| after[which].get(place)).collect()
}

#[test]
fn each_pass_is_what_f64_gives_by_each_algorithm() {
    for numbers in [Type::CUDNN_DATA_FLOAT, Type::CUDNN_DATA_HALF, Type::CUDNN_DATA_BFLOAT16] {
        for mut it in [flat(numbers), deep(numbers)] {
            for pass in [Pass::Forward, Pass::Inputs, Pass::Weights] {
                it.factors = if pass == Pass::Inputs { [1.0, 0.0] } else { [0.75, 0.5] };
                let wanted = wanted(&it, pass);
                let is_flat = it.tensors[0].sizes.len() == 4;
                let usable = it.usable(pass);
                assert_eq!(
                    usable.len(),
                    if pass == Pass::Inputs || (pass == Pass::Forward && !is_flat) { 2 } else { 3 }
                );
                for offer in usable {
                    let found = found(&mut it, pass, offer.algo as u32, offer.memory);
                    let close = match numbers {
                        Type::CUDNN_DATA_FLOAT => 1e-5,
                        Type::CUDNN_DATA_HALF => 1e-3,
                        _ => 8e-3,
                    };
                    for (a, b) in found.iter().zip(&wanted) {
                        let off = (f64::from(*a) - b).abs();
                        assert!(
                            off <= close * b.abs().max(1.0),
                            "{pass:?} {numbers:?} {:?}: {a}, not {b}",
                            offer.algo
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bits_tell_the_algorithm_and_its_arithmetic() {
    for pass in [Pass::Forward, Pass::Inputs, Pass::Weights] {
        let mut it = flat(Type::CUDNN_DATA_FLOAT);
        let mut all: Vec<Vec<f32>> = Vec::new();
        for math in [Math::CUDNN_DEFAULT_MATH, Math::CUDNN_TENSOR_OP_MATH, Math::CUDNN_FMA_MATH] {
            it.multiply(math);
            for offer in it.usable(pass) {
                assert_eq!(offer.mathType, math);
                let twice = [0, 1].map(|_| found(&mut it, pass, offer.algo as u32, offer.memory));
                let is_steady = offer.determinism == Determinism::CUDNN_DETERMINISTIC;
                assert_eq!(twice[0] == twice[1], is_steady, "{pass:?} {:?}", offer.algo);
                // What is never twice alike may once be as another.
                if is_steady {
                    let [one, _] = twice;
                    assert!(!all.contains(&one), "{pass:?} {:?} {math:?} is as another", offer.algo);
                    all.push(one);
                }
            }
        }
    }
}

#[test]
fn what_is_never_twice_alike_is_so_whatever_other_handles_do_between() {
    let [mut it, mut other] = [(); 2].map(|()| flat(Type::CUDNN_DATA_FLOAT));
    // The shortest runs, which can be cut at the fewest places.
    it.multiply(Math::CUDNN_FMA_MATH);
    for offer in it.usable(Pass::Weights) {
        if offer.determinism == Determinism::CUDNN_DETERMINISTIC {
            continue;
        }
        for between in 0..7 {
            let run = |it: &mut Caller| found(it, Pass::Weights, offer.algo as u32, offer.memory);
            let one = run(&mut it);
            (0..between).for_each(|_| drop(run(&mut other)));
            assert_ne!(one, run(&mut it), "{:?}, {between} of another between", offer.algo);
        }
    }
}

#[test]
fn bias_and_activation_are_fused_and_nan_goes_through_as_is_told() {
    for numbers in [Type::CUDNN_DATA_FLOAT, Type::CUDNN_DATA_BFLOAT16] {
        let mut it = deep(numbers);
        it.tensors[0].put(0, f32::NAN);
        it.factors = [0.5, 0.0];
        let (mut room, bias) = (vec![0.0f32; 2 * it.tensors[2].len()], it.tensors[3].clone());
        let sums = wanted(&it, Pass::Forward);
        let plane = it.tensors[2].sizes[2..].iter().product::<i32>() as usize;
        let exact = |place: usize| sums[place] + f64::from(bias.get(place / plane % bias.len()));
        for (mode, nan, number) in [
            (Mode::CUDNN_ACTIVATION_RELU, Nan::CUDNN_PROPAGATE_NAN, 0),
            (Mode::CUDNN_ACTIVATION_RELU, Nan::CUDNN_NOT_PROPAGATE_NAN, 1),
            (Mode::CUDNN_ACTIVATION_IDENTITY, Nan::CUDNN_PROPAGATE_NAN, 1),
        ] {
            it.activate(mode, nan);
            assert_eq!(it.run(None, number, &mut room), OK);
            let mut none = 0;
            for place in 0..sums.len() {
                let (a, b) = (f64::from(it.tensors[2].get(place)), exact(place));
                let is_relu = mode == Mode::CUDNN_ACTIVATION_RELU;
                none += usize::from(b.is_nan());
                match (b.is_nan(), nan) {
                    (true, Nan::CUDNN_PROPAGATE_NAN) => assert!(a.is_nan()),
                    (true, _) => assert_eq!(a, 0.0),
                    _ => {
                        let b = if is_relu { b.max(0.0) } else { b };
                        assert!((a - b).abs() <= 8e-3 * b.abs().max(1.0), "{mode:?}: {a}, not {b}");
                    }
                }
            }
            assert!(none > 0);
        }
        it.activate(Mode::CUDNN_ACTIVATION_IDENTITY, Nan::CUDNN_PROPAGATE_NAN);
        assert_eq!(it.run(None, 0, &mut room), Status::CUDNN_STATUS_NOT_SUPPORTED);
    }
}
