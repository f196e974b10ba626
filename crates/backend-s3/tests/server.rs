//! Volumes over HTTP: what a store does wrong, and what follows.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]
#![allow(dead_code, reason = "the tests of the program use the rest of the server")]

mod s3_server;

use forebay_backend::{Backend, Blocking, OpenOptions, conformance};
use forebay_types::Fault;
use s3_server::{KEY, S3Server};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Bench {
    server: S3Server,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        forebay_backend_s3::register();
        Self { server: S3Server::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn name(&self, options: &str) -> String {
        self.server.volume(self.directory.path(), "v", &format!("&object=1MiB&keep=0s{options}"))
    }

    fn open(&self) -> Arc<dyn Backend> {
        forebay_backend::open(&self.name("&size=64MiB"), &OpenOptions::default()).unwrap()
    }

    fn error(&self, name: &str) -> String {
        let opened = forebay_backend::open(name, &OpenOptions::default());
        opened.err().unwrap().explained()
    }
}

fn read(backend: &dyn Backend, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    Blocking::new(backend).read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_volume_over_http_passes_the_suite_of_backends() {
    let bench = Bench::new();
    let backend = bench.open();
    conformance::check(&backend);
}

#[test]
fn a_bucket_is_addressed_in_the_name_of_the_host() {
    let bench = Bench::new();
    bench.server.set(|faults| faults.wants_bucket_in_host = true);
    let behind = bench.name("&size=64MiB").replace("127.0.0.1", "localhost");
    let said = bench.error(&behind);
    assert!(said.contains("no bucket 'bucket'") && said.contains("addressing=virtual"), "{said}");
    let named = format!("{behind}&addressing=virtual");
    let backend = forebay_backend::open(&named, &OpenOptions::default()).unwrap();
    conformance::check(&backend);
    let identity = backend.description().identity.clone();
    drop(backend);
    assert!(bench.server.objects().iter().all(|(name, _)| name.starts_with("v/")));
    // It is the same volume, wherever the bucket is.
    bench.server.set(|faults| faults.wants_bucket_in_host = false);
    let backend = forebay_backend::open(&behind, &OpenOptions::default()).unwrap();
    assert_eq!(backend.description().identity, identity);
    drop(backend);
    let said = bench.error(&bench.name("&addressing=virtual"));
    assert!(said.contains("'bucket.127.0.0.1' is not the name of a host"), "{said}");
}

#[test]
fn tags_without_quotes_are_tried() {
    let bench = Bench::new();
    bench.server.set(|faults| faults.wants_plain_tags = true);
    let backend = bench.open();
    Blocking::new(&*backend).write(0, &[1; 4096], true).unwrap();
    drop(backend);
    assert_eq!(read(&*bench.open(), 0, 4096), [1; 4096]);
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let bench = Bench::new();
    bench.server.set(|faults| faults.ignores_create_condition = true);
    let said = bench.error(&bench.name("&size=64MiB"));
    assert!(said.contains("If-None-Match is ignored") && said.contains("MinIO"), "{said}");
    bench.server.set(|faults| {
        faults.ignores_create_condition = false;
        faults.ignores_replace_condition = true;
    });
    let said = bench.error(&bench.name("&size=64MiB"));
    assert!(said.contains("If-Match is ignored"), "{said}");
    assert_eq!(bench.server.objects(), [], "nothing is left in a store that is refused");
}

#[test]
fn what_is_wrong_with_the_store_is_said() {
    let bench = Bench::new();
    let name = bench.name("&size=64MiB");
    let said = bench.error(&name.replace("s3://bucket", "s3://basket"));
    assert!(said.contains("no bucket 'basket'") && said.contains("create it"), "{said}");
    bench.server.set(|faults| faults.key = "OTHER".into());
    let said = bench.error(&name);
    assert!(said.contains("InvalidAccessKeyId") && said.contains("credentials"), "{said}");
    bench.server.set(|faults| faults.key = KEY.into());
    let said = bench.error(&bench.name(""));
    assert!(said.contains("there is no volume at s3://bucket/v"), "{said}");
    let text = std::fs::read_to_string(bench.directory.path().join("s3-credentials")).unwrap();
    let missing = name.replace("s3-credentials", "none");
    assert!(bench.error(&missing).contains("no credentials in"), "{text}");
}

#[test]
fn answers_that_are_lost_cost_nothing() {
    let bench = Bench::new();
    bench.server.set(|faults| faults.lost_answers = 9);
    let backend = bench.open();
    let disk = Blocking::new(&*backend);
    for value in 1..9u8 {
        bench.server.set(|faults| faults.lost_answers = 1);
        disk.write(u64::from(value) * 4096, &[value; 4096], true).unwrap();
    }
    bench.server.set(|faults| faults.lost_answers = 3);
    drop(backend);
    let backend = bench.open();
    for value in 1..9u8 {
        assert_eq!(read(&*backend, u64::from(value) * 4096, 4096), [value; 4096]);
    }
}

#[test]
fn errors_of_the_store_are_a_pause() {
    let bench = Bench::new();
    let backend = bench.open();
    let disk = Blocking::new(&*backend);
    disk.write(0, &[1; 4096], true).unwrap();
    for answer in [(503, "SlowDown"), (500, "InternalError"), (403, "ExpiredToken")] {
        bench.server.set(|faults| faults.answers = Some(answer));
        disk.write(4096, &[2; 4096], false).unwrap();
        let flushing = backend.clone();
        let flush = std::thread::spawn(move || Blocking::new(&*flushing).flush());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!flush.is_finished(), "nothing is stored while the store answers {answer:?}");
        bench.server.set(|faults| faults.answers = None);
        assert_eq!(read(&*backend, 0, 4096), [1; 4096]);
        flush.join().unwrap().unwrap();
    }
    assert!(!backend.is_taken_over());
}

#[test]
fn a_full_buffer_holds_writers_back_and_loses_nothing() {
    let bench = Bench::new();
    let name = bench.name("&size=64MiB&buffer=2MiB");
    let backend = forebay_backend::open(&name, &OpenOptions::default()).unwrap();
    bench.server.set(|faults| faults.answers = Some((503, "SlowDown")));
    let writers: Vec<_> = (0..16)
        .map(|tag| {
            let backend = backend.clone();
            let write = move || {
                let bytes = vec![tag as u8; 512 << 10];
                Blocking::new(&*backend).write(tag * (512 << 10), &bytes, false)
            };
            std::thread::spawn(write)
        })
        .collect();
    let accepted = || writers.iter().filter(|writer| writer.is_finished()).count();
    let begin = Instant::now();
    while accepted() < 4 {
        assert!(begin.elapsed() < Duration::from_secs(60), "2 MiB are accepted");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(accepted(), 4, "no more than 2 MiB are accepted");
    bench.server.set(|faults| faults.answers = None);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    assert_eq!(read(&*backend, 15 * (512 << 10), 512 << 10), vec![15; 512 << 10]);
}

#[test]
fn an_idle_volume_makes_no_request() {
    let bench = Bench::new();
    let backend = bench.open();
    let disk = Blocking::new(&*backend);
    for value in 0..50u8 {
        disk.write(u64::from(value) * 4096, &[value; 4096], false).unwrap();
    }
    // Without a flush, it is stored after some seconds.
    let begin = Instant::now();
    let before = bench.server.counts();
    while bench.server.counts().puts == before.puts {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is never stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    bench.server.wait_until_idle(Duration::from_secs(1));
    let before = bench.server.counts();
    std::thread::sleep(Duration::from_secs(13));
    assert_eq!(bench.server.counts(), before);
    // Nor for reads of what it does not have.
    assert_eq!(read(&*backend, 32 << 20, 1 << 20), vec![0; 1 << 20]);
    assert_eq!(bench.server.counts(), before);
}

#[test]
fn half_an_object_is_noticed_and_named() {
    let bench = Bench::new();
    drop(bench.open());
    let whole = bench.server.get("v/manifest");
    bench.server.set(|faults| faults.halves = Some("manifest"));
    let backend = bench.open();
    drop(backend);
    bench.server.set(|faults| faults.halves = None);
    let said = bench.error(&bench.name(""));
    assert!(said.contains("manifest of s3://bucket/v is damaged"), "{said}");
    bench.server.put("v/manifest", whole);
    drop(bench.open());
}

#[test]
fn a_store_is_reached_over_tls_if_its_certificate_is_trusted() {
    forebay_backend_s3::register();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.into())
        .unwrap();
    let server = S3Server::start_with(Some(Arc::new(tls)));
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, certified.cert.pem()).unwrap();
    let credentials = S3Server::credentials(directory.path(), KEY);
    let (port, ca, credentials) = (server.port(), ca.display(), credentials.display());
    let name = format!(
        "s3://bucket/v?size=64MiB&endpoint=https://localhost:{port}&credentials={credentials}"
    );
    let untrusted = forebay_backend::open(&name, &OpenOptions::default());
    let said = untrusted.err().unwrap().explained();
    assert!(said.contains("certificate") && server.objects().is_empty(), "{said}");
    let backend = forebay_backend::open(&format!("{name}&ca={ca}"), &OpenOptions::default());
    let backend = backend.unwrap();
    let data = vec![9; 3 << 20];
    Blocking::new(&*backend).write(0, &data, true).unwrap();
    assert!(read(&*backend, 0, data.len()) == data);
}

/// Prints what docs/manual/s3.md says of requests and bytes.
#[test]
#[ignore = "prints figures"]
fn figures_of_requests_and_bytes() {
    const GIB: u64 = 1 << 30;
    let bench = Bench::new();
    for (title, size, blocks, block_bytes, flush_every) in [
        ("4 KiB at random, once, flushed at the end", 4 * GIB, 100_000u64, 4096u64, u64::MAX),
        ("4 KiB, a flush each", GIB, 2_000, 4096, 1),
        ("4 KiB, a flush each 64", GIB, 20_000, 4096, 64),
        ("1 MiB in order, flushed at the end", GIB, 1_024, 1 << 20, u64::MAX),
        ("4 KiB at random, four times the volume", GIB / 4, 262_144, 4096, 4096),
        ("64 KiB at random, four times the volume", GIB, 65_536, 65_536, 1024),
    ] {
        let name = format!("v{}", bench.server.counts().puts);
        let options = format!("&size={size}&keep=0s");
        let name = bench.server.volume(bench.directory.path(), &name, &options);
        let backend = forebay_backend::open(&name, &OpenOptions::default()).unwrap();
        let disk = Blocking::new(&*backend);
        let data = vec![1; block_bytes as usize];
        let before = bench.server.counts();
        let mut number = 1u64;
        for block in 0..blocks {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let place = if title.contains("order") { block } else { number >> 20 };
            disk.write(place % (size / block_bytes) * block_bytes, &data, false).unwrap();
            if (block + 1) % flush_every == 0 {
                disk.flush().unwrap();
            }
        }
        disk.flush().unwrap();
        bench.server.wait_until_idle(Duration::from_secs(2));
        let after = bench.server.counts();
        let written = (blocks * block_bytes) as f64;
        let (puts, gets) = (after.puts - before.puts, after.gets - before.gets);
        let stored: u64 = bench.server.objects().iter().map(|(_, bytes)| bytes).sum();
        println!(
            "{title}: {:.2} bytes for each, {puts} puts, {gets} gets, {} deletes for {:.0} MiB; \
             {} MiB kept of {} MiB",
            (after.put_bytes - before.put_bytes) as f64 / written,
            after.deletes - before.deletes,
            written / 1_048_576.0,
            stored >> 20,
            size >> 20,
        );
        drop(backend);
        bench.server.clear();
    }
}
