//! A store in memory that is loaded from a file when it is opened, and saved to it on request.
//!
//! All of its memory is allocated when it is opened, so that it counts as used from then on, and no
//! later write can find that there is too little.

use super::image::Image;
use super::{MemoryBackend, MemoryError};
use crate::count::IoCount;
use crate::sync::{lock, read, write};
use crate::{Backend, Description, Extent, Io, IoKind, OpenOptions, Saved};
use forebay_types::{ByteRange, Size};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::SystemTime;

/// Bytes of all these stores in the process.
static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The memory that all stores with an image have allocated in this process, in bytes.
pub fn saved_memory_bytes() -> u64 {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

/// A store in memory with an image.
pub(super) struct SavedMemory {
    memory: MemoryBackend,
    description: Description,
    image: Mutex<Kept>,
    /// Something was written since the image was loaded or saved.
    is_changed: AtomicBool,
    /// Each write holds it shared from before it sets `is_changed` until its data is copied: a save
    /// that clears `is_changed` must include the data of all writes that have set it.
    writes: RwLock<()>,
}

struct Kept {
    image: Image,
    last: Option<SystemTime>,
}

impl SavedMemory {
    /// Loads a store of this size from its image.
    ///
    /// # Errors
    /// The size is invalid, there is no memory for it, or the image is unusable.
    pub(super) fn open(
        size_bytes: u64,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Self, MemoryError> {
        let mut memory = MemoryBackend::new(size_bytes)?;
        let image = Image::open(path, size_bytes, options.in_use_wait)?;
        memory.allocate()?;
        let last = image.load(&memory)?;
        let memory = memory.read_only(options.read_only);
        let name = format!("memory:{}?save={}", Size(size_bytes), image.path().display());
        let description = Description { name, ..memory.description().clone() };
        ALLOCATED_BYTES.fetch_add(size_bytes, Ordering::Relaxed);
        let image = Mutex::new(Kept { image, last });
        let (is_changed, writes) = Default::default();
        Ok(Self { memory, description, image, is_changed, writes })
    }
}

impl Drop for SavedMemory {
    fn drop(&mut self) {
        ALLOCATED_BYTES.fetch_sub(self.description.size_bytes, Ordering::Relaxed);
    }
}

impl Backend for SavedMemory {
    fn description(&self) -> &Description {
        &self.description
    }

    fn submit(&self, io: Io) {
        let Some(io) = io.admit(&self.description) else { return };
        self.memory.count.add(&io);
        if matches!(io.kind, IoKind::Read | IoKind::Flush) {
            self.memory.run(&io);
        } else {
            let _write = read(&self.writes);
            self.is_changed.store(true, Ordering::Relaxed);
            self.memory.run(&io);
        }
        io.done.complete(Ok(()));
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        self.memory.extents(range)
    }

    fn io_count(&self) -> Option<IoCount> {
        self.memory.io_count()
    }

    fn save(&self) -> io::Result<()> {
        let mut kept = lock(&self.image);
        if self.description.read_only {
            return Ok(());
        }
        // What is written from here on is a change; what was written before is in the image.
        let was_changed = {
            let _no_write = write(&self.writes);
            self.is_changed.swap(false, Ordering::Relaxed)
        };
        if !was_changed {
            return Ok(());
        }
        if let Err(error) = kept.image.save(&self.memory) {
            self.is_changed.store(true, Ordering::Relaxed);
            return Err(error);
        }
        kept.last = Some(SystemTime::now());
        Ok(())
    }

    fn saved(&self) -> Option<Saved> {
        let kept = lock(&self.image);
        let is_changed = self.is_changed.load(Ordering::Relaxed);
        Some(Saved { path: kept.image.path().to_owned(), last: kept.last, is_changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, open};
    use forebay_types::Fault;
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::Arc;

    /// Not a multiple of chunks or pages.
    const SIZE: u64 = (1 << 20) + 3 * 512;

    fn image(directory: &Path) -> PathBuf {
        let path = directory.join("r&m.img");
        fs::write(&path, "").unwrap();
        path
    }

    fn spec(path: &Path) -> String {
        format!("memory:{SIZE}?save={}", path.display().to_string().replace('&', "%26"))
    }

    fn opened(path: &Path) -> Arc<dyn Backend> {
        open(&spec(path), &OpenOptions::default()).unwrap()
    }

    fn refused(spec: &str) -> String {
        open(spec, &OpenOptions::default()).err().map(|error| error.explained()).unwrap()
    }

    fn content(backend: &dyn Backend) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        Blocking::new(backend).read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn it_passes_the_suite() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let spec = format!("memory:16MiB?save={}", path.display().to_string().replace('&', "%26"));
        let backend = open(&spec, &OpenOptions::default()).unwrap();
        crate::conformance::check(&backend);
    }

    #[test]
    fn it_is_loaded_as_it_was_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        assert!(disk.saved().is_some_and(|saved| saved.last.is_none() && !saved.is_changed));
        let writes = [(0, 512, 1), (65_536 - 512, 1024, 2), (SIZE - 512, 512, 3)];
        for (offset, len, value) in writes {
            Blocking::new(&*disk).write(offset, &vec![value; len], false).unwrap();
        }
        assert!(disk.saved().unwrap().is_changed);
        disk.save().unwrap();
        let saved = content(&*disk);
        // What is written after the save is lost with the process.
        Blocking::new(&*disk).write(4096, &[9; 512], false).unwrap();
        drop(disk);
        assert_eq!(fs::read(&path).unwrap()[..SIZE as usize], saved, "the file is an image");
        let disk = opened(&path);
        assert!(content(&*disk) == saved);
        assert!(disk.saved().is_some_and(|saved| saved.last.is_some() && !saved.is_changed));
        // Zeroed parts are zeroes in the next image.
        Blocking::new(&*disk).discard(0, 1 << 20).unwrap();
        disk.save().unwrap();
        drop(disk);
        let mut expected = vec![0; SIZE as usize];
        expected[SIZE as usize - 512..].fill(3);
        assert!(content(&*opened(&path)) == expected);
    }

    #[test]
    fn a_save_beside_writes_loses_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        for round in 1..=20u8 {
            let disk = opened(&path);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for sector in 0..2_048 {
                        let bytes = [round; 512];
                        Blocking::new(&*disk).write(sector * 512, &bytes, false).unwrap();
                    }
                });
                while !writer.is_finished() {
                    disk.save().unwrap();
                }
            });
            disk.save().unwrap();
            drop(disk);
            assert!(content(&*opened(&path))[..1 << 20].iter().all(|&byte| byte == round));
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_former_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        Blocking::new(&*disk).write(0, &[1; 512], false).unwrap();
        disk.save().unwrap();
        let before = fs::read(&path).unwrap();
        Blocking::new(&*disk).write(0, &[2; 512], false).unwrap();
        // Its name is taken by a directory.
        let new = directory.path().join("r&m.img.new");
        fs::create_dir(&new).unwrap();
        assert!(disk.save().is_err());
        assert!(disk.saved().unwrap().is_changed);
        assert!(fs::read(&path).unwrap() == before);
        fs::remove_dir(&new).unwrap();
        disk.save().unwrap();
        assert_eq!(fs::read(&path).unwrap()[..512], [2; 512]);
        assert!(!new.exists());
    }

    #[test]
    fn images_that_cannot_be_trusted_are_refused_and_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path());
        let disk = opened(&path);
        assert!(refused(&spec(&path)).contains("is in use"));
        Blocking::new(&*disk).write(8192, &[1; 512], false).unwrap();
        disk.save().unwrap();
        assert!(refused(&spec(&path)).contains("is in use"), "the new file is locked, too");
        drop(disk);
        let whole = fs::read(&path).unwrap();
        let damage = |offset: u64, bytes: &[u8]| {
            fs::write(&path, &whole).unwrap();
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .write_all_at(bytes, offset)
                .unwrap();
            let before = fs::read(&path).unwrap();
            let text = refused(&spec(&path));
            assert!(fs::read(&path).unwrap() == before);
            text
        };
        let len = whole.len() as u64;
        // One bit of the data, of the table, of the trailer, and of what was never written.
        assert!(damage(8192, &[0]).contains("is damaged at byte 0"));
        assert!(damage(700_000, &[1]).contains("is damaged at byte 655360"));
        assert!(damage(SIZE.next_multiple_of(4096) + 5, &[1]).contains("is damaged"));
        assert!(damage(len - 4096 + 20, &[1]).contains("is damaged"));
        assert!(damage(len - 4096, &[0]).contains("is not an image of a volume in memory"));
        assert!(damage(len, &[0; 4096]).contains("is not an image"), "longer");
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(refused(&spec(&path)).contains("is not an image"), "shorter");
        fs::write(&path, &whole).unwrap();
        let other = spec(&path).replace(&SIZE.to_string(), "2MiB");
        assert!(refused(&other).contains("holds a volume of 1050112 bytes, not 2097152"));
        assert_eq!(content(&*opened(&path))[8192], 1);

        fs::remove_file(&path).unwrap();
        let text = refused(&spec(&path));
        assert!(text.contains("does not exist") && text.contains("touch"), "{text}");
        assert!(!path.exists());
        assert!(refused(&spec(directory.path())).contains("not a regular file"));
        assert!(refused("memory:1MiB?save=").contains("has no value"));
        assert!(refused("memory:1MiB?sav=/x").contains("no option 'sav'"));
        assert!(refused("memory:8388607TiB?save=/x").contains("cannot map"));
    }
}
