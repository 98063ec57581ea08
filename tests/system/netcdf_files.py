# SPDX-License-Identifier: Apache-2.0
"""Writes netCDF-4 files by netCDF4 and xarray: netcdf_files.py FOLDER X.NPY LABELS.NPY

X [samples, h, w] are quarters of whole numbers. A process of its own, because the libraries bring
another HDF5 than h5py.
"""

import os
import sys

import netCDF4
import numpy as np
import xarray


def write_netcdf4(folder, x, labels):
    """Writes two files of `plain`, `packed` and `regime`."""
    os.makedirs(folder)
    for part, rows in (("a.nc", slice(20)), ("b.nc", slice(20, None))):
        with netCDF4.Dataset(os.path.join(folder, part), "w") as file:
            for name, extent in (("time", None), ("lat", x.shape[1]), ("lon", x.shape[2])):
                file.createDimension(name, extent)
            dimensions = ("time", "lat", "lon")
            plain = file.createVariable("plain", "f8", dimensions, zlib=True)
            packed = file.createVariable("packed", "i2", dimensions, zlib=True, fill_value=-32767)
            packed.scale_factor, packed.add_offset = 0.25, 16.0
            packed.units, packed.valid_range = "K", np.array([-3000, 3000], "i2")
            plain[:] = packed[:] = x[rows]
            file.createVariable("regime", "i1", ("time",))[:] = labels[rows]
            # The rest of it keeps the default fill value.
            file.createVariable("half", "f4", dimensions)[:, :4] = x[rows][:, :4]


def write_xarray(folder, x, labels):
    """Writes plain.nc and packed.nc4 of `z` and `k`."""
    os.makedirs(folder)
    variables = {"z": (("time", "y", "x"), x.astype("f8")), "k": (("time",), labels)}
    data = xarray.Dataset(variables, coords={"time": np.arange(len(x))})
    data.to_netcdf(os.path.join(folder, "plain.nc"), engine="netcdf4")
    packing = {"dtype": "int16", "scale_factor": 0.25, "_FillValue": -9999, "zlib": True}
    data.to_netcdf(os.path.join(folder, "packed.nc4"), engine="netcdf4", encoding={"z": packing})


if __name__ == "__main__":
    folder, x, labels = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
    write_netcdf4(os.path.join(folder, "nc"), x, labels)
    write_xarray(os.path.join(folder, "xr"), x, labels)
