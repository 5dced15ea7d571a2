//! The numbers of a link: how long, how large, how many.
//!
//! One value for the whole process. This file does not know where the numbers come from; the root derives the times
//! from `detect`.

use super::LinkError;
use super::floor::FloorConfig;
use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// The largest UDP payload that is ever tried: a jumbo frame of 9 000 bytes with the headers of IPv6. How many of them
/// go out at once is the business of `bursts.rs`.
pub const LARGEST_DATAGRAM: u16 = 8952;
/// The least that QUIC asks of a path.
const SMALLEST_DATAGRAM: u16 = 1200;
/// What a round trip is taken for until one was measured. QUIC's own third of a second makes a lost first packet cost a
/// second; a path between training hosts that is slower than this only sends a packet or two twice.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Streams that a peer may have open at a time: a control stream, a bulk stream for each of two generations, and room.
const STREAMS: u32 = 16;
/// Bytes of packets that may wait for the gate to look at one attempt. A client sends one datagram first.
const WAITING_BYTES: u64 = 16 * 1024;
/// Attempts that may wait for the gate. It looks at once, so these are those of one turn of the event loop.
const WAITING: usize = 256;

/// The numbers of all links of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// A link from which nothing came for so long is lost.
    pub idle_timeout: Duration,
    /// How often a silent link is made to say something. Less than a third of `idle_timeout`.
    pub keep_alive: Duration,
    /// A handshake that takes longer is given up.
    pub handshake_timeout: Duration,
    /// The largest datagram to look for on a path. *Units*: bytes of UDP payload, 1 200 to [`LARGEST_DATAGRAM`].
    pub largest_datagram: u16,
    /// What a peer may send on one stream before it is read. *Units*: bytes.
    pub stream_window: u32,
    /// The congestion window never falls below this, so that a path that loses packets without being full stays usable.
    /// *Units*: bytes.
    pub least_window: u64,
    /// Handshakes that may go on at a time.
    pub most_half_open: usize,
    /// Of those, from one address (IPv6: from one /64).
    pub most_half_open_per_source: usize,
    /// With so many handshakes going on, a stranger must show that it can receive at its address before it gets one.
    pub retry_from: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(3),
            keep_alive: Duration::from_millis(500),
            handshake_timeout: Duration::from_secs(5),
            largest_datagram: LARGEST_DATAGRAM,
            stream_window: 16 << 20,
            least_window: 256 << 10,
            most_half_open: 64,
            most_half_open_per_source: 32,
            retry_from: 8,
        }
    }
}

impl Tuning {
    /// *Errors*: [`LinkError::Setting`] for the first number that makes no sense.
    pub fn check(&self) -> Result<(), LinkError> {
        let refuse = |what, value: String| Err(LinkError::Setting { what, value });
        if !(SMALLEST_DATAGRAM..=LARGEST_DATAGRAM).contains(&self.largest_datagram) {
            return refuse("largest datagram", self.largest_datagram.to_string());
        }
        if IdleTimeout::try_from(self.idle_timeout).is_err() || self.keep_alive * 3 > self.idle_timeout {
            return refuse("idle timeout", format!("{:?}", self.idle_timeout));
        }
        if self.most_half_open_per_source == 0 || self.most_half_open < self.most_half_open_per_source {
            return refuse("most half-open handshakes", self.most_half_open.to_string());
        }
        if self.stream_window < 1 << 16 {
            return refuse("stream window", self.stream_window.to_string());
        }
        Ok(())
    }

    /// `greetings`: streams without a kind that the other side may open.
    fn transport(&self, greetings: u32) -> Arc<TransportConfig> {
        let mut config = TransportConfig::default();
        let idle = IdleTimeout::try_from(self.idle_timeout).expect("checked");
        // Some streams with full windows must not hold up the rest of the connection.
        let window = VarInt::try_from(u64::from(self.stream_window) * 4).expect("far below 2^62");
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.largest_datagram);
        config
            .initial_rtt(FIRST_ROUND_TRIP)
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(Some(self.keep_alive))
            .mtu_discovery_config(Some(discovery))
            .stream_receive_window(VarInt::from_u32(self.stream_window))
            .receive_window(window)
            .send_window(u64::from(self.stream_window) * 2)
            .datagram_receive_buffer_size(None)
            .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
            .max_concurrent_uni_streams(VarInt::from_u32(greetings))
            .congestion_controller_factory(Arc::new(FloorConfig { least: self.least_window }));
        Arc::new(config)
    }

    /// What a dialled link is made with: the other side greets this one.
    pub(super) fn dialled(&self) -> Arc<TransportConfig> {
        self.transport(1)
    }

    pub(super) fn server(&self, crypto: Arc<dyn quinn::crypto::ServerConfig>) -> quinn::ServerConfig {
        let mut config = quinn::ServerConfig::with_crypto(crypto);
        config
            .transport_config(self.transport(0))
            .migration(false)
            .max_incoming(WAITING)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(WAITING_BYTES * WAITING as u64);
        config.validation_token.sent(0);
        config
    }

    pub(super) fn endpoint(&self, seed: Option<[u8; 32]>) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(self.largest_datagram).expect("checked");
        config.rng_seed(seed);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_would_hang_a_link_are_refused() {
        let good = Tuning::default();
        assert_eq!(good.check(), Ok(()));
        for wrong in [
            Tuning { largest_datagram: LARGEST_DATAGRAM + 1, ..good },
            Tuning { largest_datagram: 1199, ..good },
            Tuning { keep_alive: good.idle_timeout, ..good },
            Tuning { most_half_open: 1, ..good },
            Tuning { most_half_open_per_source: 0, ..good },
            Tuning { stream_window: 1024, ..good },
        ] {
            assert!(matches!(wrong.check(), Err(LinkError::Setting { .. })), "{wrong:?}");
        }
    }
}
