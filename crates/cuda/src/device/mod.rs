//! The engine's device on a GPU: one stream, and the little memory that operations need beside their operands.
//!
//! An operation returns when its kernels are on the stream, or held back to be given together (see [`Stream::gathering`]). What
//! the host reads (losses, sums, flags, indices) comes through small pinned buffers, behind the stream. After a failure nothing is
//! launched any more; the next wait or read panics with the driver's words (a `String`), and [`CudaDevice::check`] tells them
//! without a panic.
//!
//! In which [`Precision`] numbers between layers lie, and are multiplied, is said when it is made. Where tensor cores have no kernel
//! for a shape, the operation is that of f32 between two that convert: for a product of columns by columns, or with strides in both
//! directions; for attention with heads of more than 128 elements or of no multiple of 8. Which it is depends on the shape alone.
//!
//! Large products, convolutions and attention over halves are done by libraries where pins say by which of their algorithms: see
//! `by_cublaslt.rs`, `by_cudnn.rs`, `channels_last.rs` and `attention_by_cudnn.rs`.
//!
//! It does not know who shares the GPU.

mod ahead;
mod asked;
mod attention_by_cudnn;
mod by_cublaslt;
mod by_cudnn;
mod channels_last;
mod lent;
mod operations;
mod own_memory;
mod placed;
mod products;
mod rehearsal;
mod settlements;
mod way;
mod workspace;

use crate::driver::{DriverError, Gpu, Stream};
use crate::libraries::cublaslt::CublasLt;
use crate::libraries::pins::ProductPins;
use crate::libraries::{Libraries, LibraryError, Wanted};
use crate::memory::{Element, Slice, SliceMut};
use crate::operations::Precision;
use ahead::Ahead;
use asked::{Attentions, Convolutions};
use dtrain_engine::cpu::Pool;
use products::Products;
use settlements::Settlements;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workspace::Workspace;

pub use own_memory::DeviceFloats;
pub(crate) use placed::{Around, ConvolutionPlaces};
pub use rehearsal::rehearsed;
pub use settlements::{DeviceScalar, PendingFindings};
pub use workspace::PendingSums;

/// A GPU as one rank uses it.
#[derive(Debug)]
pub struct CudaDevice {
    /// First, so that it is freed while its stream is there.
    workspace: Mutex<Workspace>,
    /// Made when something is sent there first: in the rehearsal of a replica.
    ahead: Mutex<Option<Ahead>>,
    settlements: Mutex<Settlements>,
    products: Products,
    /// Both before their stream, which their handles are on.
    convolutions: Convolutions,
    attentions: Attentions,
    stream: Arc<Stream>,
    precision: Precision,
    /// Who brings lists to the GPU's memory, and from there.
    threads: Arc<Pool>,
}

impl CudaDevice {
    /// A stream on a GPU, with a workspace that grows with the first pass. *Errors*: of the driver.
    pub fn new(gpu: &Arc<Gpu>, precision: Precision) -> Result<Self, DriverError> {
        Self::on(Stream::gathering(gpu)?, precision)
    }

    /// The same, but every kernel is given to the driver by itself: for looking, and for measuring what that costs.
    /// *Errors*: of the driver.
    pub fn one_by_one(gpu: &Arc<Gpu>, precision: Precision) -> Result<Self, DriverError> {
        Self::on(Stream::new(gpu)?, precision)
    }

    /// The same, and every kernel is timed: [`Stream::take_times`] tells. *Errors*: of the driver.
    pub fn timing(gpu: &Arc<Gpu>, precision: Precision) -> Result<Self, DriverError> {
        Self::on(Stream::timing(gpu)?, precision)
    }

    fn on(stream: Stream, precision: Precision) -> Result<Self, DriverError> {
        let (stream, threads) = (Arc::new(stream), Arc::<Pool>::default());
        let workspace = Mutex::new(Workspace::new(stream.gpu().context(), &threads)?);
        let settlements = Mutex::new(Settlements::new(stream.gpu().context(), &stream)?);
        let (ahead, products) = (Mutex::default(), Products::default());
        let (convolutions, attentions) = (Convolutions::default(), Attentions::default());
        Ok(Self {
            workspace,
            ahead,
            settlements,
            products,
            convolutions,
            attentions,
            stream,
            precision,
            threads,
        })
    }

    /// More threads than that bring no list faster: one rounds some 15 GB of f32 a second to bf16, and a link carries 50 of bf16.
    pub const MOST_THREADS: usize = 8;

    /// The same, to whose memory these threads bring long lists, and from there: a large batch is copied, or rounded, by all of them
    /// on its way. Otherwise the caller does it alone.
    #[must_use]
    pub fn with_threads(self, threads: Pool) -> Self {
        let threads = Arc::new(threads);
        self.workspace().way().by(&threads);
        Self { ahead: Mutex::default(), threads, ..self }
    }

    /// The same, whose products this library does where the pins say so.
    ///
    /// *Errors*: [`LibraryError::Unfit`].
    pub fn with_products(self, pins: &ProductPins, library: &Arc<CublasLt>) -> Result<Self, LibraryError> {
        Ok(Self { products: Products::pinned(pins, library)?, ..self })
    }

    /// The same, which notes products of so many operations and more. The default is 2^30: less is not worth to leave a graph for.
    #[must_use]
    pub fn noting_products(self, least: u64) -> Self {
        Self { products: Products::noting(least), ..self }
    }

    /// The same, with what these libraries do; the rest is its own, and nothing is noted. *Blocks* while a library begins.
    ///
    /// *Errors*: an algorithm that a library does not take; of the driver.
    pub fn with_libraries(self, libraries: &Libraries) -> Result<Self, DriverError> {
        let device = match &libraries.products {
            Some((pins, library)) => self.with_products(pins, library)?,
            None => self.with_own_products(),
        };
        let device = match &libraries.convolutions {
            Some((pins, library)) => device.with_convolutions(pins, library)?,
            None => device.with_own_convolutions(),
        };
        match &libraries.attention {
            Some((pins, library)) => device.with_attention(pins, library),
            None => Ok(device.with_own_attention()),
        }
    }

    /// The same, which notes what it would ask libraries for from so many operations on.
    #[must_use]
    pub fn noting(self, least: u64) -> Self {
        self.noting_products(least).noting_convolutions(least).noting_attention(least)
    }

    /// What libraries might be asked for, since the device was made.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted {
            products: self.products_asked_for(),
            convolutions: self.convolutions_asked_for(),
            attention: self.attention_asked_for(),
        }
    }

    /// The same, whose products no library will ever do: none is noted.
    #[must_use]
    pub fn with_own_products(self) -> Self {
        Self { products: Products::own(), ..self }
    }

    /// The stream that every operation is put on; a backend may put its collectives there too.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// How numbers between layers lie, and what it multiplies.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.stream.gpu()
    }

    /// *Errors*: what the device has failed in, as far as it is known.
    pub fn check(&self) -> Result<(), DriverError> {
        self.gpu().context().check()
    }

    /// *Blocks* until everything that was given is done. *Errors*: what the device failed in.
    pub fn finish(&self) -> Result<(), DriverError> {
        self.stream.finish()
    }

    /// Writes a list of the host into the device's memory. *Blocks* until it is there. *Errors*: of the driver.
    ///
    /// *Panics* if the lengths differ.
    pub fn upload<T: Element>(&self, from: &[T], to: SliceMut<'_, T>) -> Result<(), DriverError> {
        assert_eq!(from.len(), to.len(), "elements from the host for the device");
        self.workspace().way().upload(&self.stream, from, to.address())?;
        self.finish()
    }

    /// Reads the device's memory into a list of the host, behind everything that was given. *Errors*: of the driver.
    ///
    /// *Panics* if the lengths differ.
    pub fn download<T: Element>(&self, from: Slice<'_, T>, to: &mut [T]) -> Result<(), DriverError> {
        assert_eq!(from.len(), to.len(), "elements from the device for the host");
        self.workspace().way().download(&self.stream, from.address(), to)
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Ahead>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settlements(&self) -> MutexGuard<'_, Settlements> {
        // As for the workspace.
        self.settlements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workspace(&self) -> MutexGuard<'_, Workspace> {
        // Whoever panicked over a failed device leaves nothing half done here.
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
