//! Calls of the library of one convolution, with descriptors that are given back.

use cudarc::cudnn::sys::{self, cudnnDataType_t as Type, cudnnStatus_t as Status};
use dtrain_fake_common::trial::{about_zero, beside, open};
use half::{bf16, f16};
use libloading::Library;
use std::ffi::c_int;
use std::ptr::{from_ref, null_mut};
use std::sync::LazyLock;

pub const OK: Status = Status::CUDNN_STATUS_SUCCESS;
pub use sys::cudnnConvolutionFwdAlgoPerf_t as Offer;

/// The library, which cargo builds beside this test. It stays open, so that its name means this file.
pub static LIBRARY: LazyLock<Library> = LazyLock::new(|| open(&beside("libfake_cudnn.so")));

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pass {
    Forward,
    Inputs,
    Weights,
}

/// A tensor of numbers that are aligned.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub numbers: Type,
    pub sizes: Vec<c_int>,
    memory: Vec<u32>,
}

impl Tensor {
    /// Numbers about zero that are never the same.
    pub fn new(numbers: Type, sizes: &[c_int], seed: u32) -> Self {
        let count = sizes.iter().product::<c_int>() as usize;
        let mut it = Self { numbers, sizes: sizes.to_vec(), memory: vec![0; count] };
        (0..count).zip(about_zero(seed)).for_each(|(place, value)| it.put(place, value));
        it
    }

    pub fn at(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    pub fn len(&self) -> usize {
        self.memory.len()
    }

    pub fn put(&mut self, place: usize, value: f32) {
        let half = match self.numbers {
            Type::CUDNN_DATA_FLOAT => return self.memory[place] = value.to_bits(),
            Type::CUDNN_DATA_HALF => f16::from_f32(value).to_bits(),
            _ => bf16::from_f32(value).to_bits(),
        };
        let (word, shift) = (&mut self.memory[place / 2], place % 2 * 16);
        *word = *word & !(0xffff << shift) | u32::from(half) << shift;
    }

    pub fn get(&self, place: usize) -> f32 {
        let half = || (self.memory[place / 2] >> (place % 2 * 16)) as u16;
        match self.numbers {
            Type::CUDNN_DATA_FLOAT => f32::from_bits(self.memory[place]),
            Type::CUDNN_DATA_HALF => f16::from_bits(half()).to_f32(),
            _ => bf16::from_bits(half()).to_f32(),
        }
    }
}

/// A handle with the descriptors of a convolution, and its tensors: x, w, y and a bias.
pub struct Caller {
    pub handle: sys::cudnnHandle_t,
    told: [sys::cudnnTensorDescriptor_t; 3],
    filter: sys::cudnnFilterDescriptor_t,
    pub how: sys::cudnnConvolutionDescriptor_t,
    pub activation: sys::cudnnActivationDescriptor_t,
    pub tensors: [Tensor; 4],
    pub steps: [Vec<c_int>; 3],
    pub factors: [f32; 2],
}

impl Caller {
    /// Along each axis: padding, stride, distance of taps.
    pub fn new(numbers: Type, x: &[c_int], w: &[c_int], steps: [&[c_int]; 3]) -> Self {
        LazyLock::force(&LIBRARY);
        let (mut handle, mut how, mut activation, mut filter) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let mut y = vec![0; x.len()];
        let mut told = [null_mut(); 3];
        // SAFETY: each is made before it is used, and lists are as long as is told.
        unsafe {
            assert!(sys::is_culib_present(), "it is not found by its name");
            assert_eq!(sys::cudnnCreate(&mut handle), OK);
            told.iter_mut().for_each(|it| assert_eq!(sys::cudnnCreateTensorDescriptor(it), OK));
            assert_eq!(sys::cudnnCreateFilterDescriptor(&mut filter), OK);
            assert_eq!(sys::cudnnCreateConvolutionDescriptor(&mut how), OK);
            assert_eq!(sys::cudnnCreateActivationDescriptor(&mut activation), OK);
        }
        let bias = [&[1, w[0]][..], &vec![1; x.len() - 2]].concat();
        let tensor = |sizes: &[c_int], seed| Tensor::new(numbers, sizes, seed);
        let tensors = [tensor(x, 1), tensor(w, 2), tensor(&bias, 3), tensor(&bias, 4)];
        let steps = steps.map(<[c_int]>::to_vec);
        let mut it = Self { handle, told, filter, how, activation, tensors, steps, factors: [1.0, 0.0] };
        it.tell(Type::CUDNN_DATA_FLOAT, sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION);
        it.describe(0, numbers);
        it.describe(1, numbers);
        let axes = y.len() as c_int;
        // SAFETY: there is room for so many sizes.
        let status =
            unsafe { sys::cudnnGetConvolutionNdForwardOutputDim(how, told[0], filter, axes, y.as_mut_ptr()) };
        assert_eq!(status, OK);
        it.tensors[2] = Tensor::new(numbers, &y, 3);
        it.describe(2, numbers);
        it.describe(3, numbers);
        it
    }

    /// Tells how it is added and turned.
    pub fn tell(&self, sums: Type, mode: sys::cudnnConvolutionMode_t) {
        let [padding, stride, dilation] = self.steps.each_ref().map(|list| list.as_ptr());
        let axes = self.steps[0].len() as c_int;
        // SAFETY: lists are as long as is told.
        let status = unsafe {
            sys::cudnnSetConvolutionNdDescriptor(self.how, axes, padding, stride, dilation, mode, sums)
        };
        assert_eq!(status, OK);
    }

    /// Tells of a tensor: x, w, y or the bias.
    pub fn describe(&self, which: usize, numbers: Type) {
        let sizes = &self.tensors[which].sizes;
        let strides: Vec<c_int> = (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product()).collect();
        let (axes, format) = (sizes.len() as c_int, sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW);
        // SAFETY: lists are as long as is told.
        let status = unsafe {
            match which {
                1 => sys::cudnnSetFilterNdDescriptor(self.filter, numbers, format, axes, sizes.as_ptr()),
                _ => {
                    let it = self.told[[0, 0, 1, 2][which]];
                    sys::cudnnSetTensorNdDescriptor(it, numbers, axes, sizes.as_ptr(), strides.as_ptr())
                }
            }
        };
        assert_eq!(status, OK);
    }

    pub fn activate(&self, mode: sys::cudnnActivationMode_t, nan: sys::cudnnNanPropagation_t) {
        // SAFETY: it takes numbers.
        assert_eq!(unsafe { sys::cudnnSetActivationDescriptor(self.activation, mode, nan, 0.0) }, OK);
    }

    pub fn multiply(&self, math: sys::cudnnMathType_t) {
        // SAFETY: it takes a number.
        assert_eq!(unsafe { sys::cudnnSetConvolutionMathType(self.how, math) }, OK);
    }

    /// What is offered, the same for all passes: number, status, workspace, determinism.
    pub fn offers(&self, pass: Pass) -> Result<Vec<Offer>, Status> {
        // SAFETY: all zeros is one of them.
        let (mut all, mut count) = ([unsafe { std::mem::zeroed::<Offer>() }; 16], 0);
        let ([x, y, _], w, to) = (self.told, self.filter, all.as_mut_ptr());
        // SAFETY: there is room for so many.
        let status = unsafe {
            let (handle, how, count) = (self.handle, self.how, &mut count);
            match pass {
                Pass::Forward => {
                    sys::cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, how, y, 16, count, to)
                }
                Pass::Inputs => {
                    let to = to.cast();
                    sys::cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, y, how, x, 16, count, to)
                }
                Pass::Weights => {
                    let to = to.cast();
                    sys::cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, y, how, w, 16, count, to)
                }
            }
        };
        if status == OK { Ok(all[..count as usize].to_vec()) } else { Err(status) }
    }

    /// Those that can be used.
    pub fn usable(&self, pass: Pass) -> Vec<Offer> {
        let offers = self.offers(pass).expect("algorithms");
        offers.into_iter().filter(|offer| offer.status == OK).collect()
    }

    /// Computes one of the three by the algorithm of this number; with bias and activation.
    pub fn run(&self, pass: Option<Pass>, number: u32, workspace: &mut [f32]) -> Status {
        let [alpha, beta] = self.factors.each_ref().map(|factor| from_ref(factor).cast());
        let [at_x, at_w, at_y, at_bias] = self.tensors.each_ref().map(|it| it.at() as *mut _);
        let (room, bytes) = (workspace.as_mut_ptr().cast(), size_of_val(workspace));
        let ([x, y, bias], w, how, h) = (self.told, self.filter, self.how, self.handle);
        // What both calls of the forward pass begin with.
        macro_rules! forward {
            ($call:ident $(, $more:expr)*) => {{
                let by = std::mem::transmute::<u32, sys::cudnnConvolutionFwdAlgo_t>(number);
                sys::$call(h, alpha, x, at_x, w, at_w, how, by, room, bytes, beta, y, at_y $(, $more)*)
            }};
        }
        // SAFETY: the numbers are those of the header; tensors lie there, or it is refused.
        unsafe {
            match pass {
                Some(Pass::Forward) => forward!(cudnnConvolutionForward),
                None => {
                    let activation = self.activation;
                    forward!(cudnnConvolutionBiasActivationForward, bias, at_bias, activation, y, at_y)
                }
                Some(Pass::Inputs) => {
                    let by = std::mem::transmute::<u32, sys::cudnnConvolutionBwdDataAlgo_t>(number);
                    sys::cudnnConvolutionBackwardData(
                        h, alpha, w, at_w, y, at_y, how, by, room, bytes, beta, x, at_x,
                    )
                }
                Some(Pass::Weights) => {
                    let by = std::mem::transmute::<u32, sys::cudnnConvolutionBwdFilterAlgo_t>(number);
                    sys::cudnnConvolutionBackwardFilter(
                        h, alpha, x, at_x, y, at_y, how, by, room, bytes, beta, w, at_w,
                    )
                }
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: nobody has them any more.
        unsafe {
            self.told.iter().for_each(|it| assert_eq!(sys::cudnnDestroyTensorDescriptor(*it), OK));
            assert_eq!(sys::cudnnDestroyFilterDescriptor(self.filter), OK);
            assert_eq!(sys::cudnnDestroyConvolutionDescriptor(self.how), OK);
            assert_eq!(sys::cudnnDestroyActivationDescriptor(self.activation), OK);
            assert_eq!(sys::cudnnDestroy(self.handle), OK);
        }
    }
}
