//! Volumes over a store in memory.

use crate::S3Error;
use crate::backend::S3Backend;
use crate::name::S3Name;
use crate::store::Store;
use forebay_backend::{Backend, Blocking, OpenOptions, conformance};
use forebay_objects::{Manifest, ObjectName};
use forebay_types::{ByteRange, Fault};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "s3://bucket/v?size=64MiB&object=1MiB&keep=0s";

struct Bucket(Arc<InMemory>);

impl Bucket {
    fn new() -> Self {
        Self(Arc::new(InMemory::new()))
    }

    fn open_as(&self, name: &str, options: &OpenOptions) -> Result<S3Backend, S3Error> {
        let parsed = S3Name::parse(name).unwrap();
        let store = Store::over(self.0.clone(), &parsed, "memory".into());
        S3Backend::open_over(store, name, parsed, options)
    }

    fn open(&self) -> S3Backend {
        self.open_as(NAME, &OpenOptions::default()).unwrap()
    }

    fn error(&self, name: &str, options: &OpenOptions) -> String {
        self.open_as(name, options).err().unwrap().explained()
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        crate::executor::wait_for(&crate::executor::handle().unwrap(), work).unwrap()
    }

    /// Names and sizes.
    fn objects(&self) -> Vec<(String, u64)> {
        let store = self.0.clone();
        self.run(async move {
            use futures_util::TryStreamExt;
            let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
            listed.into_iter().map(|it| (it.location.to_string(), it.size)).collect()
        })
    }

    fn names(&self) -> Vec<String> {
        self.objects().into_iter().map(|(name, _)| name).collect()
    }

    /// The size of all objects.
    fn bytes(&self) -> u64 {
        self.objects().iter().map(|(_, size)| size).sum()
    }

    /// The objects with parts of a map, of former checkpoints too.
    fn maps(&self) -> usize {
        self.names().iter().filter(|name| name.contains("/map/")).count()
    }

    /// The parts that the map of the last checkpoint has.
    fn parts(&self) -> usize {
        self.manifest().checkpoint.unwrap().parts.len()
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let (store, path) = (self.0.clone(), Path::from(format!("v/{name}")));
        self.run(async move { store.get(&path).await.unwrap().bytes().await.unwrap().to_vec() })
    }

    fn put(&self, name: &str, bytes: Vec<u8>) {
        let (store, path) = (self.0.clone(), Path::from(format!("v/{name}")));
        self.run(async move { store.put(&path, bytes.into()).await.unwrap() });
    }

    fn manifest(&self) -> Manifest {
        Manifest::decode(&self.get("manifest")).unwrap()
    }

    /// A copy of all objects, as a store has them after a power failure of the server.
    fn copy(&self) -> Self {
        let copy = Self::new();
        for name in self.names() {
            let name = name.strip_prefix("v/").unwrap();
            copy.put(name, self.get(name));
        }
        copy
    }
}

fn read(backend: &dyn Backend, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    Blocking::new(backend).read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_volume_passes_the_suite_of_backends() {
    let bucket = Bucket::new();
    let backend: Arc<dyn Backend> = Arc::new(bucket.open());
    conformance::check(&backend);
    drop(backend);
    // And again, over what is there.
    let backend: Arc<dyn Backend> = Arc::new(bucket.open());
    conformance::check(&backend);
}

#[test]
fn what_was_flushed_is_there_after_a_crash_and_nothing_is_torn() {
    let bucket = Bucket::new();
    let backend = bucket.open();
    let disk = Blocking::new(&backend);
    disk.write(0, &[1; 8192], false).unwrap();
    disk.write(4096, &[2; 4096], false).unwrap();
    disk.flush().unwrap();
    disk.write(0, &[3; 512], false).unwrap();
    let crashed = bucket.copy();
    // The owner's process runs, as far as the record says, so a takeover is asked for.
    let options = OpenOptions { takes_over: true, ..OpenOptions::default() };
    drop(backend);
    let after = crashed.open_as(NAME, &options).unwrap();
    assert_eq!(read(&after, 0, 8192), [[1; 4096], [2; 4096]].concat());
    drop(after);
    assert_eq!(read(&bucket.open(), 0, 512), [3; 512]);
}

#[test]
fn the_next_owner_ends_the_epoch_of_the_former_one() {
    let bucket = Bucket::new();
    let first = bucket.open();
    let disk = Blocking::new(&first);
    disk.write(0, &[1; 4096], true).unwrap();
    // The same store as another process sees it.
    let owner = "m\n2 host other-boot ns 1 1".into();
    let elsewhere = Manifest { owner, ..bucket.manifest() };
    let copy = bucket.copy();
    copy.put("manifest", elsewhere.encode());
    let said = copy.error(NAME, &OpenOptions::default());
    assert!(said.contains("in use by process 1 of Forebay on host"), "{said}");
    assert!(said.contains("forebay takeover"), "{said}");
    let readable = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(copy.error(NAME, &readable).contains("in use by"));
    drop(first);
    let epoch = bucket.manifest().epoch;
    let second = bucket.open();
    assert_eq!(bucket.manifest().epoch, epoch + 1);
    assert_eq!(read(&second, 0, 4096), [1; 4096]);
}

#[test]
fn a_fenced_owner_acknowledges_nothing_more() {
    let bucket = Bucket::new();
    let backend = bucket.open();
    let disk = Blocking::new(&backend);
    disk.write(0, &[1; 4096], true).unwrap();
    // Another server begins an epoch, and puts a tombstone where the next object would be.
    let manifest = bucket.manifest();
    let next = ObjectName { epoch: manifest.epoch, number: manifest.first + 2 };
    let tombstone = forebay_objects::ObjectHeader {
        volume: manifest.volume,
        name: next,
        nonce: 1,
        kind: forebay_objects::ObjectKind::Tombstone,
        run_count: 0,
        sectors: 0,
    };
    bucket.put(&next.to_string(), tombstone.encode(&[]));
    assert!(disk.write(0, &[2; 4096], true).is_err());
    assert!(backend.is_taken_over());
    assert!(disk.write(0, &[2; 4096], false).is_err());
    assert!(disk.flush().is_err());
    assert!(disk.read(0, &mut [0; 512]).is_err());
    assert!(backend.check_presence().is_err());
}

/// As after a sleep between the opening and the first client.
#[test]
fn an_owner_that_was_taken_over_before_it_serves_finds_out() {
    let bucket = Bucket::new();
    let first = bucket.open();
    assert!(first.tenure().unwrap().former.is_empty());
    let own = first.tenure().unwrap().own;
    drop(first);
    let second = bucket.open();
    assert_eq!(second.tenure().unwrap().former, [own]);
    second.settle_tenure().unwrap();
    let mut taken = bucket.manifest();
    (taken.epoch, taken.nonce) = (taken.epoch + 1, 7);
    taken.replay.push(taken.epoch);
    bucket.put("manifest", taken.encode());
    assert!(second.settle_tenure().is_err() && second.is_taken_over());
}

#[test]
fn sizes_and_names_are_checked() {
    let bucket = Bucket::new();
    let options = OpenOptions::default();
    let said = bucket.error("s3://bucket/v", &options);
    assert!(said.contains("no volume") && said.contains("s3://bucket/v?size="), "{said}");
    let backend = bucket.open();
    assert_eq!(backend.description().size_bytes(), 64 << 20);
    assert!(bucket.error(NAME, &options).contains("is in use here"));
    drop(backend);
    let said = bucket.error("s3://bucket/v?size=128MiB", &options);
    assert!(said.contains("size=128MiB&grow=on"), "{said}");
    let said = bucket.error("s3://bucket/v?size=32MiB&grow=on", &options);
    assert!(said.contains("does not shrink"), "{said}");
    let backend = bucket.open_as("s3://bucket/v?size=128MiB&grow=on", &options).unwrap();
    Blocking::new(&backend).write(127 << 20, &[5; 512], true).unwrap();
    drop(backend);
    let backend = bucket.open_as("s3://bucket/v", &options).unwrap();
    assert_eq!(backend.description().size_bytes(), 128 << 20);
    assert_eq!(read(&backend, 127 << 20, 512), [5; 512]);
    drop(backend);
    let readable = OpenOptions { read_only: true, ..OpenOptions::default() };
    let backend = bucket.open_as("s3://bucket/v", &readable).unwrap();
    assert_eq!(read(&backend, 127 << 20, 512), [5; 512]);
}

#[test]
fn damaged_objects_are_named() {
    let bucket = Bucket::new();
    let backend = bucket.open();
    let disk = Blocking::new(&backend);
    disk.write(0, &[1; 4096], true).unwrap();
    // The first is the tombstone of the epoch in which the volume was created.
    let object = bucket.names().into_iter().filter(|name| name.contains("/0000")).nth(1).unwrap();
    let object = object.strip_prefix("v/").unwrap().to_owned();
    let whole = bucket.get(&object);
    // In the data: only its read fails, and says so.
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    bucket.put(&object, damaged);
    assert!(disk.read(0, &mut [0; 512]).is_err());
    bucket.put(&object, whole);
    assert_eq!(read(&backend, 0, 4096), [1; 4096]);
    drop(backend);
    let manifest = bucket.get("manifest");
    bucket.put("manifest", manifest[..manifest.len() / 2].to_vec());
    let said = bucket.error(NAME, &OpenOptions::default());
    assert!(said.contains("manifest of s3://bucket/v is damaged"), "{said}");
    bucket.put("manifest", manifest);
    let part = bucket.names().into_iter().find(|name| name.contains("/map/")).unwrap();
    let part = part.strip_prefix("v/").unwrap();
    let whole = bucket.get(part);
    bucket.put(part, whole[1..].to_vec());
    let said = bucket.error(NAME, &OpenOptions::default());
    assert!(said.contains("map/") && said.contains("damaged"), "{said}");
    bucket.put(part, whole);
    assert_eq!(read(&bucket.open(), 0, 4096), [1; 4096]);
}

#[test]
fn what_is_written_again_and_again_is_collected() {
    let bucket = Bucket::new();
    let backend = bucket.open();
    let disk = Blocking::new(&backend);
    let mut random = numbers(1);
    let mut model = vec![0u8; 64 << 20];
    for round in 0..600u64 {
        // 256 KiB at random, in 16 MiB of the volume, and a little elsewhere once.
        let at = (random() % 64) * (256 << 10);
        let value = (round % 250 + 1) as u8;
        disk.write(at, &vec![value; 256 << 10], false).unwrap();
        model[at as usize..][..256 << 10].fill(value);
        if round % 4 == 0 {
            let at = (32 << 20) + round * 4096;
            disk.write(at, &[value; 4096], false).unwrap();
            model[at as usize..][..4096].fill(value);
        }
    }
    disk.flush().unwrap();
    drop(backend);
    let backend = bucket.open();
    assert!(read(&backend, 0, 64 << 20) == model);
    // An open volume sweeps what nothing needs. Of 150 MiB written, less than 100 are kept.
    let begin = Instant::now();
    while bucket.bytes() >= 100 << 20 || bucket.maps() > 2 * bucket.parts() {
        let kept = (bucket.bytes() >> 20, bucket.maps(), bucket.parts());
        assert!(begin.elapsed() < Duration::from_secs(60), "MiB, maps, parts: {kept:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(backend);
}

/// A small generator of numbers.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 8
    }
}

#[test]
fn trims_and_zeroes_of_terabytes_take_no_time_and_no_space() {
    let bucket = Bucket::new();
    let name = "s3://bucket/v?size=2TiB&object=1MiB";
    let backend = bucket.open_as(name, &OpenOptions::default()).unwrap();
    let disk = Blocking::new(&backend);
    let begin = Instant::now();
    for gigabyte in (0..2048u64).step_by(16) {
        disk.write(gigabyte << 30, &[7; 4096], false).unwrap();
    }
    disk.discard(0, 2 << 40).unwrap();
    disk.zero(0, 2 << 40, true).unwrap();
    disk.flush().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    let whole = ByteRange::new(0, 2 << 40);
    let extents = backend.extents(whole);
    assert!(extents.len() == 1 && extents[0].hole && extents[0].len == whole.len);
    assert_eq!(read(&backend, 1024 << 30, 4096), [0; 4096]);
    assert_eq!(backend.io_count().unwrap().discards, 1);
}

#[test]
fn opens_without_writes_do_not_add_up() {
    let bucket = Bucket::new();
    for _ in 0..30 {
        let backend = bucket.open();
        assert_eq!(read(&backend, 0, 512), [0; 512]);
    }
    let manifest = bucket.manifest();
    assert_eq!(manifest.epoch, 31);
    assert!(manifest.replay.len() < 12, "{:?}", manifest.replay);
}
