//! Memory of a device for tests that run on any: written and read by the host.

// Each test binary uses its part.
#![allow(dead_code)]

use dtrain_cuda::driver::Buffer;
use dtrain_cuda::memory::Element;
use dtrain_cuda::{CudaDevice, DeviceFloats, Slice, Values, ValuesMut};
use dtrain_engine::OwnMemory;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Device;
use std::sync::Arc;

pub trait Rig {
    type D: Device;
    type Floats;
    type Words;

    fn device(&self) -> &Self::D;
    fn put(&self, x: &[f32]) -> Self::Floats;
    fn ids(&self, x: &[u32]) -> Self::Words;
    fn get(&self, x: &Self::Floats) -> Vec<f32>;
    fn r<'a>(&self, x: &'a Self::Floats) -> <Self::D as Device>::Ref<'a>;
    fn w<'a>(&self, x: &'a mut Self::Floats) -> <Self::D as Device>::Mut<'a>;
    fn i<'a>(&self, x: &'a Self::Words) -> <Self::D as Device>::Ids<'a>;

    /// Parameters: with a copy in halves where the device multiplies those.
    fn put_parameters(&self, x: &[f32]) -> Self::Floats;
    /// Numbers between layers, as the device stores them.
    fn put_activations(&self, x: &[f32]) -> Self::Floats;

    /// Memory that nothing was written to.
    fn empty(&self, len: usize) -> Self::Floats {
        self.put(&vec![f32::NAN; len])
    }
    /// The same for so many activations.
    fn empty_activations(&self, len: usize) -> Self::Floats {
        self.empty(self.device().activation_len(len))
    }
    /// What activations are.
    fn get_activations(&self, x: &Self::Floats, len: usize) -> Vec<f32>;
    /// Activations to write.
    fn wa<'a>(&self, x: &'a mut Self::Floats, len: usize) -> <Self::D as Device>::Mut<'a>;
    /// Activations to read.
    fn ra<'a>(&self, x: &'a Self::Floats, len: usize) -> <Self::D as Device>::Ref<'a> {
        self.device().activations(self.r(x), len)
    }
}

impl Rig for Cpu {
    type D = Cpu;
    type Floats = Vec<f32>;
    type Words = Vec<u32>;

    fn device(&self) -> &Cpu {
        self
    }
    fn put(&self, x: &[f32]) -> Vec<f32> {
        x.to_vec()
    }
    fn put_parameters(&self, x: &[f32]) -> Vec<f32> {
        x.to_vec()
    }
    fn put_activations(&self, x: &[f32]) -> Vec<f32> {
        x.to_vec()
    }
    fn get_activations(&self, x: &Vec<f32>, len: usize) -> Vec<f32> {
        x[..len].to_vec()
    }
    fn wa<'a>(&self, x: &'a mut Vec<f32>, len: usize) -> &'a mut [f32] {
        &mut x[..len]
    }
    fn ids(&self, x: &[u32]) -> Vec<u32> {
        x.to_vec()
    }
    fn get(&self, x: &Vec<f32>) -> Vec<f32> {
        x.clone()
    }
    fn r<'a>(&self, x: &'a Vec<f32>) -> &'a [f32] {
        x
    }
    fn w<'a>(&self, x: &'a mut Vec<f32>) -> &'a mut [f32] {
        x
    }
    fn i<'a>(&self, x: &'a Vec<u32>) -> &'a [u32] {
        x
    }
}

/// A list on the device.
pub fn on_device<T: Element>(device: &CudaDevice, x: &[T]) -> Buffer<T> {
    let mut there = Buffer::new(device.gpu().context(), x.len()).expect("memory");
    device.upload(x, there.write()).expect("a device that works");
    there
}

impl Rig for Arc<CudaDevice> {
    type D = CudaDevice;
    type Floats = DeviceFloats;
    type Words = Buffer<u32>;

    fn device(&self) -> &CudaDevice {
        self
    }
    fn put(&self, x: &[f32]) -> DeviceFloats {
        let mut there = self.floats(x.len()).expect("memory");
        self.send(x, &mut there).expect("a device that works");
        there
    }
    fn put_parameters(&self, x: &[f32]) -> DeviceFloats {
        let mut there = self.parameters(x.len()).expect("memory");
        self.send(x, &mut there).expect("a device that works");
        there
    }
    fn put_activations(&self, x: &[f32]) -> DeviceFloats {
        let mut there = self.floats(self.activation_len(x.len())).expect("memory");
        self.send_activations(x, &mut there).expect("a device that works");
        there
    }
    fn get_activations(&self, x: &DeviceFloats, len: usize) -> Vec<f32> {
        let mut here = vec![0.0; len];
        self.fetch_activations(x, &mut here).expect("a device that works");
        here
    }
    fn wa<'a>(&self, x: &'a mut DeviceFloats, len: usize) -> ValuesMut<'a> {
        x.write().stored(self.precision().storage(), len)
    }
    fn ids(&self, x: &[u32]) -> Buffer<u32> {
        on_device(self, x)
    }
    fn get(&self, x: &DeviceFloats) -> Vec<f32> {
        let mut here = vec![0.0; x.read().len()];
        self.fetch(x, &mut here).expect("a device that works");
        here
    }
    fn r<'a>(&self, x: &'a DeviceFloats) -> Values<'a> {
        x.read()
    }
    fn w<'a>(&self, x: &'a mut DeviceFloats) -> ValuesMut<'a> {
        x.write()
    }
    fn i<'a>(&self, x: &'a Buffer<u32>) -> Slice<'a, u32> {
        x.read()
    }
}

/// Panics unless `||got - wanted|| <= 1e-5 ||wanted||`, all finite.
pub fn assert_near(what: &str, got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (i, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(got.is_finite(), "{what} [{i}] is {got}, not {wanted}");
        error += (f64::from(got) - f64::from(wanted)).powi(2);
        norm += f64::from(wanted).powi(2);
    }
    assert!(error.sqrt() <= 1e-5 * norm.sqrt() + 1e-30, "{what} is off by {:e}", (error / norm).sqrt());
}
