//! A UDP socket whose bursts stay below what the kernel takes at once.
//!
//! QUIC hands over up to ten datagrams in one segmented send, whatever their size. The kernel refuses more than 64 KiB, and a
//! link whose sends are refused hangs without a word, so jumbo frames would be out of reach. This socket asks for fewer
//! datagrams at a time where they are large, and cuts a burst that is too large all the same: the first one after the path
//! was found to carry more. It does not know what is in the datagrams.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// What one send may carry. *Units*: bytes of UDP payload.
const LARGEST_BURST: usize = 65_000;

/// Wraps a socket of the runtime.
pub(super) struct Bursts {
    inner: Arc<dyn AsyncUdpSocket>,
    /// The size of the datagrams in the last burst. Only a hint: a burst is cut where it turns out wrong.
    datagram: AtomicUsize,
}

impl Bursts {
    pub fn over(inner: Arc<dyn AsyncUdpSocket>) -> Arc<Self> {
        Arc::new(Self { inner, datagram: AtomicUsize::new(1) })
    }
}

impl fmt::Debug for Bursts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bursts({:?})", self.inner)
    }
}

impl AsyncUdpSocket for Bursts {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(datagram) = transmit.segment_size else { return self.inner.try_send(transmit) };
        self.datagram.store(datagram, Ordering::Relaxed);
        let burst = LARGEST_BURST / datagram * datagram;
        let mut parts = transmit.contents.chunks(burst.max(datagram)).map(|contents| Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn,
            contents,
            segment_size: (contents.len() > datagram).then_some(datagram),
            src_ip: transmit.src_ip,
        });
        let Some(first) = parts.next() else { return Ok(()) };
        self.inner.try_send(&first)?;
        for rest in parts {
            // What finds no room now is lost on the way, as any datagram may be. The next burst is small enough.
            let _lost = self.inner.try_send(&rest);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        let fits = LARGEST_BURST / self.datagram.load(Ordering::Relaxed);
        self.inner.max_transmit_segments().min(fits).max(1)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Refuses what the kernel refuses, and keeps the rest.
    #[derive(Debug, Default)]
    struct Kernel {
        taken: Mutex<Vec<(usize, Vec<u8>)>>,
    }

    impl AsyncUdpSocket for Kernel {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nobody waits here")
        }

        fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
            if transmit.contents.len() > 65_507 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let datagram = transmit.segment_size.unwrap_or(transmit.contents.len());
            self.taken.lock().expect("no panic").push((datagram, transmit.contents.to_vec()));
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
        }

        fn max_transmit_segments(&self) -> usize {
            64
        }
    }

    #[test]
    fn a_burst_that_the_kernel_would_refuse_goes_out_in_parts_with_every_datagram_as_it_was() {
        for (datagram, count, last) in
            [(8_952, 10, 8_952), (8_952, 9, 17), (1_452, 10, 1_452), (6_500, 10, 3)]
        {
            let kernel = Arc::new(Kernel::default());
            let bursts = Bursts::over(kernel.clone());
            let contents: Vec<u8> =
                (0..datagram * (count - 1) + last).map(|at| (at / datagram) as u8).collect();
            let destination = SocketAddr::from(([127, 0, 0, 1], 2));
            let transmit = Transmit {
                destination,
                ecn: None,
                contents: &contents,
                segment_size: Some(datagram),
                src_ip: None,
            };
            bursts.try_send(&transmit).expect("it is cut to what is taken");
            let taken = kernel.taken.lock().expect("no panic");
            let datagrams: Vec<&[u8]> = taken.iter().flat_map(|(size, bytes)| bytes.chunks(*size)).collect();
            assert_eq!(datagrams, contents.chunks(datagram).collect::<Vec<_>>());
            let next = bursts.max_transmit_segments();
            assert!(
                next * datagram <= 65_507 && (next + 1) * datagram > 65_000 - datagram,
                "{next} of {datagram}"
            );
        }
    }
}
