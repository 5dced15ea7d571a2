"""A disk with a file system of its own, whose power can be cut: what was not synced is lost, as the kernel's own tests of file systems lose it."""

import fcntl
import os
import struct
import subprocess
import time

#: Ends a file system at once, and throws away what it has not written. *Source*: `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN`, linux/ext4.h.
SHUTDOWN, NO_FLUSH = 0x8004587D, struct.pack("I", 2)
#: How each is made, and how large it has to be. *Units*: MiB.
MADE = {"ext4": (["mkfs.ext4", "-q", "-F"], 128), "xfs": (["mkfs.xfs", "-q", "-f"], 320)}
#: How long the last process that used a disk may take to go. *Units*: seconds.
GOES = 10


class Disk:
    """A file system in a file, mounted at a folder that it makes."""

    def __init__(self, system, image, folder):
        (made, size), self.system, self.image, self.folder = MADE[system], system, image, folder
        with open(image, "wb") as file:
            file.truncate(size << 20)
        subprocess.run([*made, image], check=True, stdout=subprocess.DEVNULL)
        os.mkdir(folder)
        self.mount()

    def mount(self):
        subprocess.run(["mount", "-t", self.system, "-o", "loop", self.image, self.folder], check=True)

    def cut(self):
        """Loses what was not synced; nothing can be read or written until it is mounted again."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, NO_FLUSH)
        finally:
            os.close(folder)

    def unmount(self):
        """As soon as nobody uses it any more."""
        begun = time.monotonic()
        while subprocess.run(["umount", self.folder], stderr=subprocess.DEVNULL).returncode:
            if time.monotonic() - begun > GOES:
                raise OSError(f"{self.folder} is in use")
            time.sleep(0.05)

    def again(self):
        """As the machine has its power back: the file system finds what was there, by its journal."""
        self.unmount()
        self.mount()

    def remove(self):
        self.unmount()
        os.remove(self.image)
