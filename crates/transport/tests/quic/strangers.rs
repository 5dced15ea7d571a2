//! Whoever lacks the token, or has an old certificate, gets nothing read and disturbs nobody.

use crate::flood::is_alone;
use crate::links::{endpoint, loopback};
use dtrain_transport::quic::{Endpoint, Identity, LinkError, Refusal, Token, Tuning, ValidityWindow};
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Trusts everyone: what an attacker's client does.
#[derive(Debug)]
struct Credulous(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A certificate and its key.
type Papers = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A certificate that someone without the token made as well as he could.
fn forged(self_signed: bool) -> Papers {
    let key = || KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::OrganizationName, "dtrain");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = key();
    let params = CertificateParams::new(vec!["dtrain.internal".to_owned()]).expect("a name");
    let made = match self_signed {
        true => params.self_signed(&own),
        false => params.signed_by(&own, &Issuer::new(authority, key())),
    };
    (made.expect("signed").der().clone(), PrivateKeyDer::Pkcs8(own.serialize_der().into()))
}

/// What a client of plain quinn that trusts everyone is made with.
fn raw_config(papers: Option<Papers>, protocol: &[u8]) -> quinn::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous(provider)));
    let mut config = match papers {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).expect("a pair"),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).expect("a good suite")))
}

fn raw_client(papers: Option<Papers>, protocol: &[u8]) -> quinn::Endpoint {
    let mut endpoint = quinn::Endpoint::client(loopback()).expect("a free port");
    endpoint.set_default_client_config(raw_config(papers, protocol));
    endpoint
}

/// A client without a certificate over a socket of the test's.
pub fn raw_client_over(socket: Arc<dyn quinn::AsyncUdpSocket>) -> quinn::Endpoint {
    let (config, runtime) = (quinn::EndpointConfig::default(), Arc::new(quinn::TokioRuntime));
    let made = quinn::Endpoint::new_with_abstract_socket(config, None, socket, runtime);
    let mut endpoint = made.expect("an endpoint");
    endpoint.set_default_client_config(raw_config(None, b"dtrain/1"));
    endpoint
}

/// Dials as `client` does and sends bytes at the first moment at which it can. Ends when the server has ended it.
async fn intrude(client: &quinn::Endpoint, server: SocketAddr) -> quinn::ConnectionError {
    let link = match client.connect(server, "dtrain.internal").expect("a name").await {
        Ok(link) => link,
        Err(error) => return error,
    };
    if let Ok((mut send, _recv)) = link.open_bi().await {
        let _refused = send.write_all(b"\0let me in").await;
    }
    link.closed().await
}

/// The endpoint must go on serving those who have the token, and must have let nobody else in.
async fn still_serves_its_own(server: &mut Endpoint, token: &Token) {
    let friend = endpoint(token);
    let _link = friend.connect(server.local_addr()).await.expect("one token");
    assert_eq!(server.accept().await.expect("it dials").remote_addr(), friend.local_addr());
}

#[tokio::test]
async fn a_wrong_token_is_refused_on_both_sides_with_a_reason() {
    let token = Token::generate();
    let mut server = endpoint(&token);
    let stranger = endpoint(&Token::generate());
    let addr = server.local_addr();
    // The dialling side sees the server's certificate first and turns away by itself.
    let refused = stranger.connect(addr).await.map(drop);
    assert_eq!(refused, Err(LinkError::Untrusted { addr, why: Refusal::ForeignToken }));
    still_serves_its_own(&mut server, &token).await;
    assert_eq!(server.refusals().get(&Refusal::ForeignToken), Some(&1));
}

#[tokio::test]
async fn no_certificate_a_foreign_authority_and_a_self_signed_one_are_refused_in_the_handshake() {
    let token = Token::generate();
    let mut server = endpoint(&token);
    let addr = server.local_addr();
    let alpn = b"dtrain/1";
    for (client, why) in [
        (raw_client(None, alpn), Refusal::NoCertificate),
        (raw_client(Some(forged(false)), alpn), Refusal::ForeignToken),
        (raw_client(Some(forged(true)), alpn), Refusal::ForeignToken),
        (raw_client(Some(forged(true)), b"h3"), Refusal::OtherProtocol),
    ] {
        let before = server.refusals().get(&why).copied().unwrap_or(0);
        let ended = intrude(&client, addr).await;
        assert!(matches!(ended, quinn::ConnectionError::ConnectionClosed(_)), "{why:?}: {ended:?}");
        still_serves_its_own(&mut server, &token).await;
        assert_eq!(server.refusals().get(&why), Some(&(before + 1)), "{ended:?}");
    }
}

#[tokio::test]
async fn expired_and_future_certificates_of_the_right_token_are_refused_both_ways() {
    let token = Token::generate();
    let mut server = endpoint(&token);
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    for window in [
        ValidityWindow { from: now - 2 * hour, until: now - hour },
        ValidityWindow { from: now + hour, until: now + 2 * hour },
    ] {
        let identity = Identity::from_token(&token, window).expect("an identity");
        let stale = Endpoint::bind(loopback(), &identity, Tuning::default()).expect("a free port");
        let addr = server.local_addr();
        let refused = stale.connect(addr).await.map(drop);
        assert_eq!(refused, Err(LinkError::Refused { addr, why: Refusal::OutOfDate }), "{window:?}");
        let addr = stale.local_addr();
        let untrusted = endpoint(&token).connect(addr).await.map(drop);
        assert_eq!(untrusted, Err(LinkError::Untrusted { addr, why: Refusal::OutOfDate }), "{window:?}");
        still_serves_its_own(&mut server, &token).await;
    }
    assert_eq!(server.refusals().get(&Refusal::OutOfDate), Some(&2));
}

#[tokio::test]
async fn garbage_datagrams_are_dropped_and_disturb_nobody() {
    let token = Token::generate();
    let mut server = endpoint(&token);
    let friend = endpoint(&token);
    let link = friend.connect(server.local_addr()).await.expect("one token");
    let answered = server.accept().await.expect("it dials");
    let (mut send, _recv) = link.open_control().await.expect("a stream");
    let (_kind, _send, mut recv) = answered.accept_stream().await.expect("a stream");
    let socket = std::net::UdpSocket::bind(loopback()).expect("a free port");
    let mut noise = blake3::Hasher::new().finalize_xof();
    let mut bytes = vec![0u8; 1400];
    for round in 0..3_000usize {
        noise.fill(&mut bytes);
        // Long headers of QUIC 1, short headers, other versions, and every length.
        match round % 4 {
            0 => bytes[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]),
            1 => bytes[0] = bytes[0] & 0x3f | 0x40,
            2 => bytes[0] |= 0x80,
            _ => {}
        }
        let length = if round % 8 == 0 { 1_200 } else { round % bytes.len() };
        let _full = socket.send_to(&bytes[..length], server.local_addr());
        if round % 50 == 0 {
            let mark = (round as u64).to_le_bytes();
            send.write_all(&mark).await.expect("the link lives");
            let mut got = [0; 8];
            recv.read_exact(&mut got).await.expect("the link lives");
            assert_eq!(got, mark);
        }
    }
    assert!(!link.is_closed());
    still_serves_its_own(&mut server, &token).await;
}

/// Counts the lines that would be logged, and keeps their fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Fields<'a>(&'a mut String);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let _infallible = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("dtrain") && *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Fields(&mut line));
        self.0.lock().expect("no panic").push(line);
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

#[tokio::test]
async fn strangers_of_one_kind_are_told_of_once_and_counted_always() {
    if !is_alone("strangers::strangers_of_one_kind_are_told_of_once_and_counted_always") {
        return;
    }
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let token = Token::generate();
    let mut server = endpoint(&token);
    for _ in 0..10 {
        intrude(&raw_client(None, b"dtrain/1"), server.local_addr()).await;
        intrude(&raw_client(Some(forged(false)), b"dtrain/1"), server.local_addr()).await;
    }
    still_serves_its_own(&mut server, &token).await;
    let counts = server.refusals();
    assert_eq!((counts[&Refusal::NoCertificate], counts[&Refusal::ForeignToken]), (10, 10));
    let lines = log.0.lock().expect("no panic").clone();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(
        lines[0].contains("it has no certificate") && lines[1].contains("of another token"),
        "{lines:#?}"
    );
}
