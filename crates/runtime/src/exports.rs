//! Volumes as clients see them.

use crate::server::VolumeSettings;
use crate::shared::Shared;
use forebay_nbd::{ExportInfo, Exports};
use forebay_types::VolumeId;
use std::sync::atomic::Ordering;

/// What clients are told of a volume.
pub(crate) fn export_of(id: VolumeId, settings: &VolumeSettings) -> ExportInfo {
    let description = settings.backend.description();
    let mut export = ExportInfo::new(id, settings.name.clone(), description.size_bytes);
    export.description.clone_from(&settings.description);
    export.read_only = settings.read_only || description.read_only;
    // What is served from memory does not turn, but a client that orders its requests for a disk
    // that does loses nothing by it where it misses.
    export.rotational = settings.geometry.rotational == Some(true);
    // Any sectors are taken; whole blocks of the disk cost it least.
    export.block_preferred = export.block_preferred.max(description.alignment_bytes);
    export.can_trim = description.can_discard;
    export.can_fast_zero = description.can_zero_fast;
    export.tls_only = settings.tls_only;
    export
}

/// The volumes as clients see them.
pub(crate) struct ExportList<'a> {
    pub shared: &'a Shared,
}

impl Exports for ExportList<'_> {
    fn list(&self, each: &mut dyn FnMut(&ExportInfo)) {
        for volume in self.shared.volumes.all() {
            if !volume.leaving.load(Ordering::Relaxed) {
                each(&volume.export.read());
            }
        }
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let mut found = Vec::new();
        self.list(&mut |export| {
            if export.name == name || name.is_empty() {
                found.push(export.clone());
            }
        });
        // The empty name is the default export: the only one, or one that is really called so.
        if found.len() == 1 { found.pop() } else { None }
    }
}
