//! QUIC by quinn as a peer of the benchmarks: one stream, one process a side.
//!   peer_quinn recv PORT --seconds S [--buf BYTES]
//!   peer_quinn send HOST PORT SECONDS [--buf BYTES] [--cc cubic|bbr]
//! BYTES is the flow control window of both ends. The certificate is made anew by every receiver and
//! not checked: only the cost of the encryption matters here. Prints one JSON line.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Result};
use quinn::{ClientConfig, Endpoint, ServerConfig, TransportConfig, VarInt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

const SAMPLE_MS: u128 = 100;

fn cpu_s() -> f64 {
    let mut u: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut u) };
    let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    s(u.ru_utime) + s(u.ru_stime)
}

struct Series {
    start: Instant,
    last: Instant,
    cpu: f64,
    bytes: u64,
    bins: Vec<u64>,
}

impl Series {
    fn new() -> Self {
        let now = Instant::now();
        Series { start: now, last: now, cpu: cpu_s(), bytes: 0, bins: Vec::new() }
    }

    fn count(&mut self, n: usize) {
        self.last = Instant::now();
        let at = ((self.last - self.start).as_millis() / SAMPLE_MS) as usize;
        if self.bins.len() <= at {
            self.bins.resize(at + 1, 0);
        }
        self.bins[at] += n as u64;
        self.bytes += n as u64;
    }

    fn print(&self, role: &str, lost: u64) {
        let seconds = (self.last - self.start).as_secs_f64();
        let cpu = cpu_s() - self.cpu;
        let gb = self.bytes as f64 * 1e-9;
        let gbps = if seconds > 0.0 { gb * 8.0 / seconds } else { 0.0 };
        let per_gb = if gb > 0.0 { cpu / gb } else { 0.0 };
        println!(
            "{{\"role\": \"{role}\", \"bytes\": {}, \"seconds\": {seconds:.6}, \"gbps\": {gbps:.4}, \
             \"cpu_s\": {cpu:.4}, \"cpu_s_per_gb\": {per_gb:.4}, \"sample_ms\": {SAMPLE_MS}, \
             \"samples\": {:?}, \"retrans\": [{lost}]}}",
            self.bytes, self.bins
        );
    }
}

fn transport(buf: u64, bbr: bool) -> Result<Arc<TransportConfig>> {
    let mut t = TransportConfig::default();
    t.stream_receive_window(VarInt::from_u64(buf)?)
        .receive_window(VarInt::from_u64(buf)?)
        .send_window(buf);
    if bbr {
        t.congestion_controller_factory(Arc::new(quinn::congestion::BbrConfig::default()));
    }
    Ok(Arc::new(t))
}

#[derive(Debug)]
struct Unchecked(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

async fn receive(port: u16, seconds: f64, buf: u64) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["bench".into()])?;
    let key = PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.transport_config(transport(buf, false)?);
    let endpoint = Endpoint::server(config, SocketAddr::from(([0, 0, 0, 0], port)))?;
    let connection = endpoint.accept().await.ok_or_else(|| anyhow!("closed"))?.await?;
    let mut series = Series::new();
    let end = tokio::time::Instant::now() + Duration::from_secs_f64(seconds);
    let mut stream = tokio::time::timeout_at(end, connection.accept_uni()).await??;
    while let Ok(Ok(Some(chunk))) =
        tokio::time::timeout_at(end, stream.read_chunk(1 << 20, true)).await
    {
        series.count(chunk.bytes.len());
    }
    series.print("recv", 0);
    connection.close(0u32.into(), b"");
    let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    Ok(())
}

async fn send(host: IpAddr, port: u16, seconds: f64, buf: u64, bbr: bool) -> Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
        .with_no_client_auth();
    let mut config =
        ClientConfig::new(Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(buf, bbr)?);
    let any: IpAddr = if host.is_ipv4() { "0.0.0.0".parse()? } else { "::".parse()? };
    let endpoint = Endpoint::client(SocketAddr::new(any, 0))?;
    let connection =
        endpoint.connect_with(config, SocketAddr::new(host, port), "bench")?.await?;
    let mut stream = connection.open_uni().await?;
    let mut series = Series::new();
    let end = tokio::time::Instant::now() + Duration::from_secs_f64(seconds);
    let data = vec![0x55u8; 256 * 1024];
    while let Ok(Ok(n)) = tokio::time::timeout_at(end, stream.write(&data)).await {
        series.count(n);
    }
    series.print("send", connection.stats().path.lost_packets);
    connection.close(0u32.into(), b"");
    let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (mut words, mut seconds, mut buf, mut bbr) = (Vec::new(), 10.0, 64 << 20, false);
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--seconds" => seconds = given.next().unwrap_or_default().parse()?,
            "--buf" => buf = given.next().unwrap_or_default().parse()?,
            "--cc" => bbr = given.next().as_deref() == Some("bbr"),
            _ => words.push(word),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["recv", port] => receive(port.parse()?, seconds, buf).await,
        ["send", host, port, time] => {
            send(host.parse()?, port.parse()?, time.parse()?, buf, bbr).await
        }
        _ => bail!("usage: peer_quinn recv PORT --seconds S | send HOST PORT SECONDS"),
    }
}
