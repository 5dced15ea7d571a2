//! Which algorithm of a library is fastest for a product on this GPU: each that the library offers is timed, and dtrain's own kernel
//! beside them.
//!
//! It is asked once for a kind of GPU and a version of the library; what it finds is data ([`super::pins`]). Which algorithm wins may
//! differ from time to time where two are as fast: so nobody chooses during a run. It does not know who asks.

use super::cublaslt::{CublasLt, Matrices, PinnedAlgorithm, ProductWorkspace, WORKSPACE};
use super::layouts::Layout;
use super::near::are_near;
use super::pins::Pin;
use super::product::{Finish, ProductKey};
use super::timing;
use crate::CudaDevice;
use crate::driver::{Buffer, DriverError, Gpu, Stream};
use crate::operations;
use crate::values::{Storage, Values, ValuesMut};
use dtrain_engine::device::{Activation, Device, Gelu, LinearShape, Operands, Product, Strides, Write};
use std::sync::Arc;
use std::time::Duration;

/// Memory of one product, filled with numbers of both signs: zeros would take less power, and less time.
struct Room {
    device: CudaDevice,
    /// Operands, the bias, and what is added, as they are multiplied.
    read: [Buffer<u16>; 4],
    /// The bias in f32, where it is multiplied in halves.
    floats: Buffer<f32>,
    workspace: Buffer<u8>,
    /// A sum of f32 or of halves, in memory of either.
    out: Buffer<u16>,
    /// The sum that GELU is of.
    kept: Buffer<u16>,
}

/// Elements from the first of an operand to behind its last.
fn reach(layout: &Layout) -> usize {
    ((layout.columns - 1) * layout.pitch + layout.rows) as usize
}

/// An operand as the engine has it: by rows, as its transpose is by columns.
fn strides(layout: &Layout) -> Strides {
    let pitch = layout.pitch as usize;
    if layout.turned { Strides::transposed(pitch) } else { Strides::rows(pitch) }
}

/// The engine's product of a key.
fn shape(key: &ProductKey) -> Product {
    let layouts = &key.layouts;
    let k = if layouts.left.turned { layouts.left.rows } else { layouts.left.columns };
    let (m, n, k) = (layouts.out.columns as usize, layouts.out.rows as usize, k as usize);
    let write = if key.adds { Write::Add } else { Write::Set };
    Product {
        m,
        n,
        k,
        a: strides(&layouts.right),
        b: strides(&layouts.left),
        c_row: layouts.out.pitch as usize,
        write,
    }
}

impl Room {
    fn new(gpu: &Arc<Gpu>, key: &ProductKey) -> Result<Self, DriverError> {
        let device = CudaDevice::one_by_one(gpu, key.numbers.precision())?;
        let (context, layouts) = (gpu.context(), &key.layouts);
        let filled = |len: usize, seed: u32| timing::numbers(&device, key.numbers.storage(), len, seed);
        // To the end of the last row: dtrain's own kernels are told how far apart rows lie by the length.
        let out = (layouts.out.columns * layouts.out.pitch) as usize;
        let read = [
            filled(reach(&layouts.right), 1)?,
            filled(reach(&layouts.left), 2)?,
            filled(layouts.out.rows as usize, 3)?,
            filled(if key.finish.has_plus() { out } else { 1 }, 4)?,
        ];
        let mut floats = Buffer::new(context, layouts.out.rows as usize)?;
        let bytes = if key.numbers.into_floats() { 2 } else { 1 };
        let kept = Buffer::new(context, if key.finish.keeps() { out } else { 0 })?;
        let (workspace, out) =
            (Buffer::new(context, WORKSPACE as usize)?, Buffer::new(context, bytes * out)?);
        if let Some(half) = key.numbers.precision().half() {
            let mut list = vec![0; floats.len()];
            device.download(read[2].read(), &mut list)?;
            let mut widened = vec![0.0; list.len()];
            half.widen(&list, &mut widened);
            device.upload(&widened, floats.write())?;
        }
        Ok(Self { device, read, floats, workspace, out, kept })
    }

    fn stream(&self) -> &Arc<Stream> {
        self.device.stream()
    }

    fn time(&self, give: impl FnMut() -> Result<(), DriverError>) -> Result<Duration, DriverError> {
        timing::best(self.stream(), give)
    }

    fn of_library(&self, library: &Arc<CublasLt>, pin: &PinnedAlgorithm) -> Result<Duration, DriverError> {
        let mut planned = library.accept(pin)?;
        let finish = pin.key.finish;
        let [a, b, bias, plus] = [0, 1, 2, 3].map(|i| self.read[i].address());
        let (plus, bias) =
            (if finish.has_plus() { plus } else { 0 }, if finish.has_bias() { bias } else { 0 });
        let kept = if finish.keeps() { self.kept.address() } else { 0 };
        let operands = Matrices { a, b, c: self.out.address(), plus, bias, kept };
        let workspace = ProductWorkspace { address: self.workspace.address(), bytes: WORKSPACE };
        self.time(|| {
            self.stream().give_foreign("cuBLASLt", |stream| {
                // SAFETY: the matrices lie there, as long as their layouts reach; nothing else is on the stream.
                unsafe { planned.run(operands, workspace, stream) }.map_err(DriverError::from)
            })
        })
    }

    /// With this crate's own kernels: the device notes what it is asked for, and has it done by nobody else.
    fn own(&self, key: &ProductKey) -> Result<Duration, DriverError> {
        let shape = shape(key);
        let storage = key.numbers.storage();
        let values = |i: usize| {
            let len = self.read[i].len() * size_of::<u16>() / storage.bytes();
            // SAFETY: the memory is there as long as the room is.
            unsafe { Values::at(self.read[i].address(), storage, len) }
        };
        let [a, b, bias, plus] = [0, 1, 2, 3].map(values);
        let len = (key.layouts.out.columns * key.layouts.out.pitch) as usize;
        let stored = if key.numbers.into_floats() { Storage::F32 } else { storage };
        // SAFETY: the memory is there, and what is on the stream writes it one behind the other.
        let result = || unsafe { ValuesMut::at(self.out.address(), stored, len) };
        if key.finish == Finish::None {
            return self.time(|| {
                self.device.product(&shape, a, b, result());
                self.device.check()
            });
        }
        let linear = LinearShape { rows: shape.m, inputs: shape.k, outputs: shape.n };
        let activation = if key.finish == Finish::BiasRelu { Activation::Relu } else { Activation::None };
        let bias = match storage {
            Storage::F32 => bias,
            Storage::Half(_) => Values::with_copy(self.floats.read(), self.read[2].read()),
        };
        let operands = Operands { x: a, w: b, bias: key.finish.has_bias().then_some(bias) };
        self.time(|| {
            match key.finish {
                Finish::Plus | Finish::PlusBias => self.device.linear_plus(linear, operands, plus, result()),
                Finish::BiasGelu => {
                    // SAFETY: as of the result.
                    let z = unsafe { ValuesMut::at(self.kept.address(), storage, self.kept.len()) };
                    self.device.linear_gelu(linear, operands, Gelu::Tanh, z, result());
                }
                Finish::None | Finish::Bias | Finish::BiasRelu => {
                    self.device.linear(linear, operands, activation, result());
                }
            }
            self.device.check()
        })
    }

    /// GELU as a pass of its own behind a product.
    fn gelu(&self, key: &ProductKey) -> Result<Duration, DriverError> {
        let (storage, len) = (key.numbers.storage(), self.kept.len());
        self.time(|| {
            // SAFETY: as of the result.
            let (z, y) = unsafe {
                let z = Values::at(self.kept.address(), storage, len);
                (z, ValuesMut::at(self.out.address(), storage, len))
            };
            operations::gelu(self.stream(), Gelu::Tanh, z, y);
            self.device.check()
        })
    }

    /// What lies in the result, and what is kept.
    fn found(&self) -> Result<[Vec<u16>; 2], DriverError> {
        let (mut out, mut kept) = (vec![0; self.kept.len()], vec![0; self.kept.len()]);
        self.device.download(self.out.read(), &mut out)?;
        self.device.download(self.kept.read(), &mut kept)?;
        Ok([out, kept])
    }

    /// Whether GELU is what dtrain's own kernel makes of it, which has just run, and the sum that it is of too.
    fn is_right(
        &self,
        library: &Arc<CublasLt>,
        pin: &PinnedAlgorithm,
        wanted: &[Vec<u16>; 2],
    ) -> Result<bool, DriverError> {
        let Some(half) = pin.key.numbers.precision().half() else { return Ok(false) };
        // What the library does not write is not taken for what the kernel wrote.
        for room in [&self.out, &self.kept] {
            // SAFETY: they are this device's own memory, and nobody else has it.
            unsafe { self.stream().fill(room.address(), room.len() / 2, u32::MAX)? };
        }
        self.of_library(library, pin)?;
        let found = self.found()?;
        Ok(found.iter().zip(wanted).all(|(found, wanted)| are_near(half, found, wanted)))
    }
}

/// The fastest algorithm for a product, if it is faster than dtrain's own kernel. *Blocks* for some tens of milliseconds.
///
/// *Errors*: of the driver. What the library cannot do is done by dtrain's own kernel.
pub fn choose(
    gpu: &Arc<Gpu>,
    library: &Arc<CublasLt>,
    key: &ProductKey,
) -> Result<Pin<ProductKey, PinnedAlgorithm>, DriverError> {
    let room = Room::new(gpu, key)?;
    let mut own = room.own(key)?;
    let mut candidates = timing::offered(library.candidates(key))?;
    if key.finish.keeps() {
        let wanted = room.found()?;
        candidates = timing::right(candidates, |pin| room.is_right(library, pin, &wanted))?;
        // Without it the library does the sum, and GELU is a pass behind.
        let [behind, _] = choose(gpu, library, &ProductKey { finish: Finish::Bias, ..*key })?.took;
        own = own.min(Duration::from_micros(behind) + room.gelu(key)?);
    }
    let (algorithm, took) = timing::chosen(own, candidates, |pin| room.of_library(library, pin))?;
    Ok(Pin { key: *key, algorithm, took })
}
