# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down, so that find_package(hpcattn CONFIG) gives hpcattn::hpcattn.
# The component is "development"; a wheel takes the component "python" alone.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hpcattn)

install(TARGETS hpcattn EXPORT hpcattnTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hpcattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.h")
install(EXPORT hpcattnTargets NAMESPACE hpcattn:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/hpcattnConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/hpcattnConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hpcattnConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hpcattnConfig.cmake
              ${PROJECT_BINARY_DIR}/hpcattnConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/hpcattn
        COMPONENT development)
