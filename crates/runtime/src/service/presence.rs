//! Checks that the disks of volumes are still where they were opened.

use crate::disk::Change;
use crate::shared::Volume;

/// Logs if the disk of a volume was displaced, or is back.
pub(super) fn check_presence(volume: &Volume) {
    let (name, disk) = (&volume.name, &volume.backend.description().name);
    // Such a volume is removed soon, which is logged.
    if volume.backend.is_taken_over() {
        return;
    }
    match volume.disk.presence.check(&*volume.backend) {
        Change::None => {}
        Change::Gone(displaced) => tracing::error!(
            volume = %name,
            %disk,
            %displaced,
            "disk displaced, still served from the open file; the next start will not find \
             it: move it back, or copy its data elsewhere"
        ),
        Change::Back => tracing::warn!(volume = %name, %disk, "disk is back in its place"),
    }
}
